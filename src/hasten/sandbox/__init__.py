"""A measured launch changes nothing on disk.

In: a command. Out: the same command, which sees and changes files as ever, and none of its changes is left. Refuses to
keep out of sight what it cannot do: which of three forms is in force goes into the record.

`overlay`: the launch has a private view of the file system, in which everything it writes lies in a scratch folder (user and
mount namespaces, overlayfs). `landlock`: where a container forbids that, the kernel refuses all writes outside the scratch
folder, and Python's own file functions write there instead. `redirect`: where there is no Landlock either, only these do.
"""
