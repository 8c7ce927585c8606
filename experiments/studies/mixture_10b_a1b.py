"""Study `mixture-10b-a1b`: the paper's largest pair of runs, with 10B parameters of which 1B are
active, on 64 GPUs (Table 1).

At scale `paper` the numbers are the paper's own: 8M tokens a step, 125,000 steps for the baseline,
and 49,983 for the superposed run, the first 12,483 of them at s = 16. The other scales train a
small twin: a model with fewer layers and small widths, but with the same kind of layers (128
experts, top 8, normed queries and keys, 24 query heads in 4 groups, untied embedding and head)."""

from tst_study.config.presets import PRESETS
from tst_study.config.schema import SuperposedPhase
from tst_study.experiments.corpora import DCLM_QWEN, FINEWEB_EDU_QWEN
from tst_study.experiments.studies.grid import Declared, Part
from tst_study.experiments.studies.scales import SCALES, Scale
from tst_study.experiments.studies.setting import BASELINE

BASELINE_STEPS = 125_000
SUPERPOSED = SuperposedPhase(bag_size=16, steps=12_483)
SUPERPOSED_RUN_STEPS = 49_983

PAPER = (
    SCALES["paper"]
    .setting.with_text(FINEWEB_EDU_QWEN, DCLM_QWEN)
    .changed(
        "",
        # Experts are split over the eight GPUs of a node, and the optimizer's state over the
        # data-parallel ranks; the rest of the model is not split. By our estimate 64 GPUs of 80 GB
        # hold that without recomputation if a micro-batch is one sequence, and larger GPUs hold
        # more sequences.
        {
            "model.preset": "moe-10b-a1b",
            "batch.sequence_length": 8192,
            "optimizer.learning_rate": 3e-4,
            "schedule.steps": BASELINE_STEPS,
            "execution.parallel.expert": 8,
            "execution.log_every": 312,
            "execution.evaluate_every": 15_625,
            "execution.checkpoint_every": 6_250,
        },
    )
)


def parts(scale: Scale) -> list[Part]:
    """Return the two runs of the paper or, at the other scales, pairs of runs of the twin."""
    if scale.is_paper:
        return [
            Part((PAPER,), (BASELINE,)),
            Part((PAPER.with_steps(SUPERPOSED_RUN_STEPS),), (SUPERPOSED,)),
        ]
    # The twin reads the scale's text, so it needs the vocabulary with which that was prepared.
    words = PRESETS[scale.setting["model.preset"]]["vocabulary_size"]
    shape = {"model.preset": "moe-10b-a1b-twin", "model.vocabulary_size": words}
    twin = scale.setting.changed("", {**shape, "batch.sequences": 4})
    # As in the paper, the superposed run takes two fifths of the baseline's steps, and a quarter of
    # its steps are superposed.
    steps = round(0.4 * twin.steps)
    superposed = SuperposedPhase(bag_size=16, step_ratio=0.25)
    return [
        Part((twin,), (BASELINE,), scale.seeds),
        Part((twin.with_steps(steps),), (superposed,), scale.seeds),
    ]


STUDY = Declared(
    "Superposition at 10B parameters, 1B active",
    "Whether a mixture of experts reaches its baseline's loss in 40% of the steps, as published. "
    "The twins at the smaller scales show that everything works, and how experts are used.",
    parts,
)
