"""New embedding and head at the switch (Table 2): does recovery need what superposition taught
them?"""

from experiments.studies.grid import Part, against_baseline, main_of
from experiments.studies.paper_settings import DENSE_3B
from experiments.studies.scales import Scale

TITLE = "Embedding and head re-initialised at the switch"
CLAIMS = "Whether the gain survives the loss of the embeddings; both arms share their trunk."


def parts(scale: Scale) -> list[Part]:
    main = main_of(scale.is_paper)
    again = main.model_copy(update={"reinitialize_at_switch": True})
    setting = DENSE_3B if scale.is_paper else scale.setting
    return [against_baseline(setting, (main, again), scale.seeds)]
