"""Architectures of `transformers`, built from small configurations with random weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .training import Case

VOCABULARY = 99
BATCH = 2
LENGTH = 12

# Under the names that configurations use; each takes those that it has.
TEXT = dict(
    vocab_size=VOCABULARY,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=64,
    max_position_embeddings=64,
    type_vocab_size=2,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
VISION = dict(
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    image_size=32,
    patch_size=8,
    num_labels=5,
)
SEQ2SEQ = dict(
    vocab_size=VOCABULARY,
    d_model=32,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=64,
    decoder_ffn_dim=64,
    max_position_embeddings=64,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=1,
)

Batch = dict[str, torch.Tensor]


def tokens(batch: int = BATCH, length: int = LENGTH) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (batch, length))


def language() -> Batch:
    """Token ids with a mask whose second row is padded, and labels."""
    ids = tokens()
    mask = torch.ones_like(ids)
    mask[1, -3:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.clone()}


def sequences() -> Batch:
    return {**language(), "labels": tokens(length=LENGTH - 2)}


def images(size: int = 32, channels: int = 3) -> Callable[[], Batch]:
    def batch() -> Batch:
        return {
            "pixel_values": torch.randn(BATCH, channels, size, size),
            "labels": torch.randint(0, 5, (BATCH,)),
        }

    return batch


def pixels(size: int = 32) -> Batch:
    return {"pixel_values": torch.randn(BATCH, 3, size, size)}


def without_dropout(config: Any) -> Any:
    """Two devices draw different masks; LayerDrop leaves out layers by chance."""
    for name, value in vars(config).items():
        if isinstance(value, float) and ("drop" in name or name.endswith("pdrop")):
            setattr(config, name, 0.0)
        elif hasattr(value, "to_dict"):
            without_dropout(value)
    return config


def case(
    name: str,
    family: str,
    model: str,
    common: dict[str, Any],
    batch: Callable[[], dict[str, Any]],
    config: str | None = None,
    dtype: torch.dtype = torch.float32,
    without: tuple[str, ...] = (),
    **own: Any,
) -> Case:
    def build() -> tuple[torch.nn.Module, dict[str, Any]]:
        import transformers

        model_class = getattr(transformers, model)
        config_class = getattr(transformers, config) if config else model_class.config_class
        known = {**common, **own}
        settings = without_dropout(config_class(**{k: known[k] for k in known if k not in without}))
        built = model_class(settings)
        for module in built.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        return built, batch()

    return Case(name, family, build, dtype=dtype)


def encoders() -> list[Case]:
    def masked(name: str, **own: Any) -> Case:
        return case(name, "encoder", f"{name}ForMaskedLM", TEXT, language, **own)

    small = dict(dim=32, n_layers=2, n_heads=4, hidden_dim=64)
    return [
        masked("Albert", embedding_size=16),
        masked("Bert"),
        masked("BigBird", attention_type="original_full"),
        masked("Camembert"),
        masked("ConvBert", embedding_size=32, conv_kernel_size=3),
        masked("Data2VecText"),
        masked("Deberta", pos_att_type=["c2p", "p2c"], relative_attention=True),
        masked("DebertaV2", pos_att_type=["c2p", "p2c"], relative_attention=True),
        masked("DistilBert", **small),
        masked("Electra", embedding_size=16),
        masked("Ernie"),
        masked(
            "Funnel",
            without=("num_hidden_layers",),
            block_sizes=[1, 1],
            d_model=32,
            n_head=4,
            d_head=8,
            d_inner=64,
        ),
        masked("Longformer", attention_window=4),
        masked("MobileBert", embedding_size=32, intra_bottleneck_size=16, true_hidden_size=16),
        masked("ModernBert", global_attn_every_n_layers=2, local_attention=8, cls_token_id=1),
        masked("MPNet"),
        masked("Nystromformer", num_landmarks=LENGTH, segment_means_seq_len=LENGTH),
        masked("Roberta"),
        masked("RobertaPreLayerNorm"),
        masked("RoFormer", embedding_size=32),
        masked("SqueezeBert", embedding_size=32),
        masked("XLMRoberta"),
        masked("Yoso", num_hash=2),
        case(
            "FNet",
            "encoder",
            "FNetForMaskedLM",
            TEXT,
            lambda: {"input_ids": tokens()},
        ),
        case(
            "XLNet",
            "encoder",
            "XLNetLMHeadModel",
            TEXT,
            language,
            without=("max_position_embeddings",),
            d_model=32,
            n_layer=2,
            n_head=4,
            d_inner=64,
        ),
    ]


def decoders() -> list[Case]:
    def causal(name: str, model: str | None = None, **own: Any) -> Case:
        return case(name, "decoder", model or f"{name}ForCausalLM", TEXT, language, **own)

    gpt2 = dict(n_embd=32, n_layer=2, n_head=4, n_positions=64)
    experts = dict(num_experts=4, num_local_experts=4, num_experts_per_tok=2)
    latent = dict(
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        v_head_dim=8,
        qk_nope_head_dim=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        moe_intermediate_size=32,
        first_k_dense_replace=1,
        head_dim=8,
        num_key_value_heads=4,
    )
    return [
        causal("Bloom", n_layer=2, n_head=4),
        causal("CodeGen", rotary_dim=4, **gpt2),
        causal("Cohere"),
        causal("CTRL", "CTRLLMHeadModel", n_embd=32, n_layer=2, n_head=4, dff=64),
        causal("Falcon", new_decoder_architecture=True),
        causal("Gemma", head_dim=8),
        causal("Gemma2", head_dim=8, sliding_window=8),
        causal(
            "Gemma3", "Gemma3ForCausalLM", config="Gemma3TextConfig", head_dim=8, sliding_window=8
        ),
        causal("Glm", head_dim=8),
        causal("GPT2", "GPT2LMHeadModel", **gpt2),
        causal("GPTBigCode", **gpt2),
        causal("GPTJ", rotary_dim=4, **gpt2),
        causal(
            "GPTNeo",
            attention_types=[[["global", "local"], 1]],
            num_layers=2,
            num_heads=4,
            window_size=4,
        ),
        causal("GPTNeoX"),
        causal("Granite"),
        causal("Helium", head_dim=8),
        causal("Llama"),
        causal("Mistral", sliding_window=8),
        causal("Mpt", d_model=32, n_heads=4, n_layers=2, max_seq_len=64, expansion_ratio=2),
        causal("Nemotron"),
        causal("Olmo"),
        causal("Olmo2"),
        causal("OpenAIGPT", "OpenAIGPTLMHeadModel", **gpt2),
        causal("OPT", ffn_dim=64, word_embed_proj_dim=32),
        causal("Persimmon"),
        causal("Phi"),
        causal("Phi3"),
        causal("Qwen2"),
        causal("Qwen3", head_dim=8),
        causal("SmolLM3"),
        causal("StableLm"),
        causal("Starcoder2"),
        # mixtures of experts
        causal("DeepseekV3", **latent),
        causal("Granite-MoE", "GraniteMoeForCausalLM", **experts),
        causal("Mixtral", **experts),
        causal("OLMoE", "OlmoeForCausalLM", **experts),
        causal(
            "Qwen2-MoE",
            "Qwen2MoeForCausalLM",
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
            **experts,
        ),
        causal("Qwen3-MoE", "Qwen3MoeForCausalLM", moe_intermediate_size=32, head_dim=8, **experts),
        # state space
        causal("FalconMamba", state_size=8),
        causal("Mamba", state_size=8),
        causal("Mamba2", state_size=8, num_heads=8, head_dim=8, n_groups=2, chunk_size=4),
        causal(
            "RecurrentGemma",
            lru_width=32,
            attention_window_size=8,
            head_dim=8,
            num_key_value_heads=1,
            block_types=["recurrent", "attention"],
        ),
        causal("RWKV", "RwkvForCausalLM", attention_hidden_size=32, context_length=64),
    ]


def encoder_decoders() -> list[Case]:
    def seq2seq(name: str, **own: Any) -> Case:
        return case(
            name, "encoder-decoder", f"{name}ForConditionalGeneration", SEQ2SEQ, sequences, **own
        )

    t5 = dict(d_kv=8, d_ff=64, num_layers=2, num_decoder_layers=2, num_heads=4)
    return [
        seq2seq("Bart"),
        seq2seq("BigBirdPegasus", attention_type="original_full"),
        seq2seq("Blenderbot"),
        seq2seq("BlenderbotSmall"),
        seq2seq(
            "LED",
            attention_window=4,
            max_encoder_position_embeddings=64,
            max_decoder_position_embeddings=64,
        ),
        seq2seq("LongT5", local_radius=4, **t5),
        seq2seq("M2M100"),
        case("Marian", "encoder-decoder", "MarianMTModel", SEQ2SEQ, sequences),
        seq2seq("MBart"),
        seq2seq("MT5", **t5),
        seq2seq("Pegasus"),
        seq2seq("PLBart"),
        seq2seq(
            "ProphetNet",
            without=("encoder_layers", "decoder_layers"),
            hidden_size=32,
            num_encoder_layers=2,
            num_decoder_layers=2,
            num_encoder_attention_heads=4,
            num_decoder_attention_heads=4,
        ),
        seq2seq("SwitchTransformers", num_experts=4, **t5),
        seq2seq("T5", **t5),
        seq2seq("UMT5", **t5),
    ]


def vision() -> list[Case]:
    def classifier(name: str, size: int = 32, model: str | None = None, **own: Any) -> Case:
        model = model or f"{name}ForImageClassification"
        return case(name, "vision", model, VISION, images(size), **own)

    stages = dict(hidden_sizes=[16, 32], depths=[1, 1])
    swin = dict(
        without=("num_attention_heads", "num_hidden_layers"),
        embed_dim=16,
        depths=[1, 1],
        num_heads=[2, 4],
        window_size=4,
        patch_size=2,
    )
    return [
        classifier("BEiT", model="BeitForImageClassification"),
        classifier("ConvNext", num_stages=2, **stages),
        classifier("ConvNextV2", num_stages=2, **stages),
        classifier("Data2VecVision"),
        classifier("DeiT"),
        classifier("Dinov2"),
        classifier(
            "EfficientNet",
            size=64,
            num_block_repeats=[1, 1],
            in_channels=[32, 16],
            out_channels=[16, 24],
            kernel_sizes=[3, 5],
            strides=[1, 2],
            expand_ratios=[1, 6],
            depthwise_padding=[],
            hidden_dim=1280,
            width_coefficient=1.0,
        ),
        classifier(
            "FocalNet",
            embed_dim=16,
            depths=[1, 1],
            focal_levels=[1, 1],
            focal_windows=[3, 3],
            patch_size=4,
        ),
        classifier(
            "LeViT",
            size=64,
            dtype=torch.float64,
            model="LevitForImageClassification",
            image_size=64,
            patch_size=16,
            hidden_sizes=[16, 32, 48],
            num_attention_heads=[2, 2, 2],
            depths=[1, 1, 1],
            key_dim=[8, 8, 8],
        ),
        classifier("MobileNetV1", size=64, dtype=torch.float64),
        classifier("MobileNetV2", size=64, dtype=torch.float64),
        classifier(
            "MobileViT",
            size=64,
            image_size=64,
            hidden_sizes=[16, 16, 16],
            neck_hidden_sizes=[16, 16, 16, 16, 16, 16, 32],
            patch_size=2,
        ),
        classifier("PoolFormer", size=64, hidden_sizes=[16, 16, 32, 32], depths=[1, 1, 1, 1]),
        classifier(
            "PVT",
            size=64,
            model="PvtForImageClassification",
            image_size=64,
            num_encoder_blocks=2,
            hidden_sizes=[16, 32],
            depths=[1, 1],
            num_attention_heads=[1, 2],
            sequence_reduction_ratios=[4, 1],
            patch_sizes=[4, 2],
            strides=[4, 2],
            mlp_ratios=[2, 2],
        ),
        classifier(
            "RegNet", without=("num_hidden_layers",), embedding_size=16, groups_width=8, **stages
        ),
        classifier("ResNet", embedding_size=16, layer_type="basic", **stages),
        classifier("Swin", **swin),
        classifier("SwinV2", model="Swinv2ForImageClassification", **swin),
        classifier("ViT"),
        classifier("ViT-MSN", model="ViTMSNForImageClassification"),
        case(
            "SegFormer",
            "vision",
            "SegformerForSemanticSegmentation",
            VISION,
            lambda: {
                "pixel_values": torch.randn(2, 3, 64, 64),
                "labels": torch.randint(0, 5, (2, 64, 64)),
            },
            num_encoder_blocks=2,
            hidden_sizes=[16, 32],
            depths=[1, 1],
            num_attention_heads=[1, 2],
            sr_ratios=[4, 2],
            patch_sizes=[4, 3],
            strides=[4, 2],
            mlp_ratios=[2, 2],
            decoder_hidden_size=32,
        ),
        case(
            "ViT-MAE",
            "vision",
            "ViTMAEForPreTraining",
            VISION,
            lambda: {"pixel_values": torch.randn(2, 3, 32, 32), "noise": torch.rand(2, 16)},
            decoder_hidden_size=32,
            decoder_num_hidden_layers=1,
            decoder_intermediate_size=64,
            decoder_num_attention_heads=4,
        ),
        case(
            "DPT",
            "vision",
            "DPTForDepthEstimation",
            VISION,
            lambda: pixels(),
            backbone_out_indices=[0, 1, 2, 3],
            neck_hidden_sizes=[8, 8, 16, 16],
            fusion_hidden_size=16,
            is_hybrid=False,
            num_hidden_layers=4,
        ),
        case(
            "YOLOS",
            "vision",
            "YolosModel",
            VISION,
            lambda: pixels(32),
            image_size=[32, 32],
            num_detection_tokens=4,
        ),
        detr(),
    ]


def detr() -> Case:
    def build() -> tuple[torch.nn.Module, dict[str, Any]]:
        from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

        backbone = ResNetConfig(
            embedding_size=16,
            hidden_sizes=[16, 32],
            depths=[1, 1],
            layer_type="basic",
            out_features=["stage2"],
        )
        config = DetrConfig(
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            backbone_config=backbone,
            d_model=32,
            encoder_layers=1,
            decoder_layers=1,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=64,
            decoder_ffn_dim=64,
            num_queries=5,
            num_labels=4,
        )
        return DetrForObjectDetection(without_dropout(config)), pixels(64)

    return Case("DETR", "vision", build)


def audio() -> list[Case]:
    speech = dict(
        TEXT,
        conv_dim=[16, 16],
        conv_kernel=[10, 3],
        conv_stride=[5, 2],
        num_feat_extract_layers=2,
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2,
        apply_spec_augment=False,
        mask_time_prob=0.0,
        mask_feature_prob=0.0,
        ctc_loss_reduction="mean",
    )

    def waveform() -> Batch:
        return {"input_values": torch.randn(2, 400), "labels": torch.randint(3, VOCABULARY, (2, 6))}

    def recognizer(name: str, model: str, **own: Any) -> Case:
        return case(name, "audio", model, speech, waveform, **own)

    return [
        case(
            "AST",
            "audio",
            "ASTForAudioClassification",
            VISION,
            lambda: {"input_values": torch.randn(2, 24, 16), "labels": torch.randint(0, 5, (2,))},
            max_length=24,
            num_mel_bins=16,
            frequency_stride=4,
            time_stride=4,
        ),
        recognizer("Data2VecAudio", "Data2VecAudioForCTC", conv_pos_kernel_size=3),
        recognizer("Hubert", "HubertForCTC"),
        case(
            "Speech2Text",
            "audio",
            "Speech2TextForConditionalGeneration",
            SEQ2SEQ,
            lambda: {"input_features": torch.randn(2, 40, 16), "labels": tokens()},
            input_feat_per_channel=16,
            conv_channels=32,
            max_source_positions=64,
            max_target_positions=64,
        ),
        recognizer("SEW", "SEWForCTC", squeeze_factor=2),
        recognizer("UniSpeech", "UniSpeechForCTC"),
        recognizer("Wav2Vec2", "Wav2Vec2ForCTC"),
        recognizer("Wav2Vec2-Conformer", "Wav2Vec2ConformerForCTC"),
        recognizer("WavLM", "WavLMForCTC"),
        case(
            "Whisper",
            "audio",
            "WhisperForConditionalGeneration",
            SEQ2SEQ,
            lambda: {"input_features": torch.randn(2, 16, 60), "labels": tokens()},
            num_mel_bins=16,
            max_source_positions=30,
            max_target_positions=64,
        ),
    ]


def multimodal() -> list[Case]:
    def pairs(size: int = 32) -> Batch:
        ids = tokens()
        return {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "pixel_values": torch.randn(BATCH, 3, size, size),
        }

    both = dict(text_config=TEXT, vision_config=VISION, projection_dim=16)
    return [
        case(
            "AltCLIP", "multimodal", "AltCLIPModel", both, lambda: {**pairs(), "return_loss": True}
        ),
        case(
            "BLIP",
            "multimodal",
            "BlipForConditionalGeneration",
            dict(
                text_config={**TEXT, "encoder_hidden_size": 32},
                vision_config=VISION,
                projection_dim=16,
            ),
            lambda: {**pairs(), "labels": tokens()},
        ),
        case("CLIP", "multimodal", "CLIPModel", both, lambda: {**pairs(), "return_loss": True}),
        case(
            "CLIPSeg", "multimodal", "CLIPSegModel", both, lambda: {**pairs(), "return_loss": True}
        ),
        case(
            "GIT",
            "multimodal",
            "GitForCausalLM",
            {**TEXT, "vision_config": VISION},
            lambda: {**pairs(), "labels": tokens()},
        ),
        case(
            "LayoutLM",
            "multimodal",
            "LayoutLMForMaskedLM",
            TEXT,
            lambda: {
                **language(),
                "bbox": torch.randint(0, 50, (BATCH, LENGTH, 1)).expand(-1, -1, 4).contiguous(),
            },
        ),
        llava(),
        case(
            "PaliGemma",
            "multimodal",
            "PaliGemmaForConditionalGeneration",
            {},
            lambda: image_tokens(16, 98),
            text_config={**TEXT, "model_type": "gemma", "head_dim": 8},
            vision_config={**VISION, "model_type": "siglip_vision_model", "projection_dim": 32},
            image_token_index=98,
            projection_dim=32,
        ),
        case(
            "SAM",
            "multimodal",
            "SamModel",
            {},
            lambda: {
                "pixel_values": torch.randn(1, 3, 64, 64),
                "input_points": torch.rand(1, 1, 2, 2) * 60,
                "multimask_output": False,
            },
            vision_config=dict(
                hidden_size=32,
                output_channels=16,
                num_hidden_layers=2,
                num_attention_heads=4,
                image_size=64,
                patch_size=8,
                window_size=4,
                global_attn_indexes=[1],
                mlp_dim=64,
                num_pos_feats=8,
            ),
            prompt_encoder_config=dict(
                hidden_size=16,
                image_size=64,
                patch_size=8,
                image_embedding_size=8,
                mask_input_channels=4,
            ),
            mask_decoder_config=dict(
                hidden_size=16,
                mlp_dim=32,
                num_hidden_layers=1,
                num_attention_heads=2,
                iou_head_hidden_dim=16,
                iou_head_depth=2,
            ),
        ),
        case(
            "SigLIP",
            "multimodal",
            "SiglipModel",
            dict(text_config={**TEXT, "projection_size": 32}, vision_config=VISION),
            lambda: {**pairs(), "return_loss": True},
        ),
        case(
            "VisualBERT",
            "multimodal",
            "VisualBertModel",
            {**TEXT, "visual_embedding_dim": 16},
            lambda: {
                **{k: v for k, v in pairs().items() if k != "pixel_values"},
                "visual_embeds": torch.randn(BATCH, 4, 16),
            },
        ),
    ]


def image_tokens(count: int, token: int) -> dict[str, Any]:
    """A sentence that begins with the places of the image's patches."""
    ids = torch.cat([torch.full((BATCH, count), token), torch.randint(3, 90, (BATCH, 6))], 1)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(BATCH, 3, 32, 32),
        "labels": ids.clone(),
    }


def llava() -> Case:
    text = {**TEXT, "model_type": "llama"}
    sees = {**VISION, "model_type": "clip_vision_model", "projection_dim": 32}
    return case(
        "LLaVA",
        "multimodal",
        "LlavaForConditionalGeneration",
        {},
        lambda: image_tokens(16, 98),
        text_config=text,
        vision_config=sees,
        image_token_index=98,
        vision_feature_layer=-1,
    )


CASES = [
    *encoders(),
    *decoders(),
    *encoder_decoders(),
    *vision(),
    *audio(),
    *multimodal(),
]
