"""The paper's largest pair: 10B parameters of which 1B are active, on 64 GPUs (Table 1).

At scale `paper` to the digit: 8M tokens a step, 125,000 steps of the baseline against 49,983 of
which 12,483 are superposed at s = 16. The other scales train a twin with all of its structure (128
experts, top 8, normed queries and keys, 24 heads over 4 groups, untied) and small widths.
"""

from dataclasses import replace

from tst_study.config.presets import PRESETS
from tst_study.config.schema import Parallel, SuperposedPhase
from tst_study.experiments.corpora import HubText
from tst_study.experiments.studies.grid import Declared, Part
from tst_study.experiments.studies.scales import VALIDATION_TOKENS, WARMUP_STEPS, Scale
from tst_study.experiments.studies.setting import BASELINE, Setting

QWEN = "Qwen/Qwen3-30B-A3B"
"""The tokenizer of the Qwen3 family, with its 151,936 words."""
FINEWEB_EDU = HubText(
    "fineweb-edu-qwen3", "hf://HuggingFaceFW/fineweb-edu/sample-350BT:train", QWEN
)
DCLM = HubText("dclm-qwen3", "hf://mlfoundations/dclm-baseline-1.0", QWEN)

BASELINE_STEPS = 125_000
SUPERPOSED = SuperposedPhase(bag_size=16, steps=12_483)
SUPERPOSED_RUN_STEPS = 49_983

PAPER = Setting(
    model="moe-10b-a1b",
    corpora=(FINEWEB_EDU, DCLM),
    sequences=1024,
    sequence_length=8192,
    steps=BASELINE_STEPS,
    warmup_steps=WARMUP_STEPS,
    learning_rate=3e-4,
    dtype="bfloat16",
    # Experts are split within a node and the optimizer's state over data-parallel ranks; the rest
    # of the model is not split. 64 GPUs of 80 GB hold that with a micro-batch of one sequence and
    # without recomputation, larger ones with more sequences.
    parallel=Parallel(expert=8, optimizer="distributed", overlap_gradients=True),
    validation_tokens=VALIDATION_TOKENS,
)


def parts(scale: Scale) -> list[Part]:
    if scale.is_paper:
        return [
            Part((PAPER,), (BASELINE,)),
            Part((PAPER.with_steps(SUPERPOSED_RUN_STEPS),), (SUPERPOSED,)),
        ]
    twin = replace(scale.setting, model="moe-10b-a1b-twin", sequences=4)
    # The vocabulary of the tokenizer with which the scale's own text was prepared.
    words = PRESETS[scale.setting.model]["vocabulary_size"]
    twin = twin.changed("", f"model.vocabulary_size={words}")
    # As in the paper: two fifths of the baseline's steps, a quarter of them superposed.
    steps = round(0.4 * twin.steps)
    superposed = SuperposedPhase(bag_size=16, step_ratio=0.25)
    return [
        Part((twin,), (BASELINE,), scale.seeds),
        Part((twin.with_steps(steps),), (superposed,), scale.seeds),
    ]


STUDY = Declared(
    "Superposition at 10B parameters, 1B active",
    "Whether a mixture of experts reaches its baseline's loss in 40% of the steps, as published. "
    "Twins of the small scales show that everything works, and how experts are used.",
    parts,
)
