"""A measured launch changes nothing on disk.

The command sees and changes files as usual, and none of its changes remains. Which of three forms is in force is in the
record. `overlay`: the launch has a private view of the file system, in which everything it writes goes to a scratch folder
(user and mount namespaces, overlayfs). `landlock`: where a container forbids that, the kernel refuses all writes outside the
scratch folder, and Python's file functions write there instead. `redirect`: without Landlock, only these do.
"""
