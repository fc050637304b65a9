"""Where the tensors of a published model are: in a folder, or in the local Hugging Face cache, whatever their form.

In: the name that SGLang takes (folder or Hugging Face id). Out: a folder with config.json and one model.safetensors,
made once in paceline's cache where a draft comes in shards or as a pickle. Nothing is ever downloaded.
Runs in the server's process and in the learner's, which have torch; nothing else of the buffer loads it.
"""
