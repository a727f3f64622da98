// Package registry is what a configuration says, brought to life on a server: it opens the
// volumes, maps them to LUNs of targets and namespaces of subsystems, makes what is
// served agree with a file that has changed, and closes each volume after its last place.
//
//	Registry            what a program asks for
//	 ├ plan…, apply     a reload: steps from one configuration to the next, and their order
//	 ├ mapping          LUNs and namespaces: which volume is served where, and what is not
//	 ├ groups, haGroup  volumes that move between nodes
//	 ├ volumes          which volumes are open: one is opened with its first place, closed after its last
//	 └ stores           what is behind a volume: blockdev, lvm
//
// A program hands it a configuration and a server, and asks it for changes. It knows no
// flags, signals or sockets.
//
// Storage that does not answer holds up nobody but who asks for the same volume: whoever
// opens, resizes or closes a volume holds that volume's turn (volumes.begin), and nothing
// else. The configuration in force is a pointer that a reload replaces at its end. Locks, in
// the order in which they may be taken:
//
//	Registry.reloading  a reload
//	turn of a group     while its state changes
//	turn of a volume    held while storage works; a reload holds one at a time
//
// and four mutexes under which no other is taken and nobody waits: mapping.mu (what is not as
// the configuration says), volumes.mu (which volumes are open, and where they are served),
// haGroup.mu (its state) and watch.mu.
package registry
