"""A job of several processes: this process's place in it, how they start, meet and end."""
