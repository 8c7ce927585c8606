"""Token files, and the batches of a run that are read from them. Importing this does not import
torch.

- `preparation/`: turns text into token files and their manifest, once
- `token_file`: Megatron's pairs of `.bin` and `.idx`, in which the tokens are stored
- `manifest`: the file that describes the token files of a folder
- `integrity`: compares token files with their manifest
- `blend`, `corpus_order`, `permutation`: the order in which sequences are read, across and within
  corpora
- `token_stream`: the sequences that each step of a run reads
- `held_out`: the tokens that a run is evaluated on
- `run_data`: opens the stream and the held-out tokens of a run, and identifies its data
"""
