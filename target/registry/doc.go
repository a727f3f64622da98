// Package registry is what a configuration says, brought to life on a server: it opens the
// volumes, maps them to LUNs of targets and namespaces of subsystems, makes what is
// served agree with a file that has changed, and closes each volume after its last place.
//
//	config.Config ─► Registry ─► target.Server      targets, LUNs, subsystems, namespaces
//	                    └─► volumes ─► blockdev, lvm    opened, resized, closed: storage may take its time
//
// A program hands it a configuration and a server, and asks it for changes. It knows no
// flags, signals or sockets.
//
// Storage that does not answer holds up nobody but who asks for the same volume: whoever
// opens, resizes or closes a volume holds that volume's turn (volumes.begin), and nothing
// else. Locks, in the order in which they may be taken:
//
//	Registry.reloading  a reload
//	turn of a volume    held while storage works; a reload holds one at a time
//	Registry.mu         the configuration in force, and what is not as it says
//	volumes.mu          which volumes are open, and where they are served
package registry
