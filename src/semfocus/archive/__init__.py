"""Runs on their way between machines: archives of run directories, and the tables in which results are published.

    pack(RunStore("runs"), Path("runs.tar.xz"))          run directories in one small file
    unpack([Path("runs.tar.xz")], RunStore("elsewhere"))  and back, merged with what is there

`contents` says which files of a run travel, `xz` compresses and reads untrusted streams, `manifest` is what an archive
says of itself, `pack` writes archives, `unpack` reads them, `merge` puts runs into a store.
"""
