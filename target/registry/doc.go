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
// Storage that does not answer holds up nobody but those who ask for the same volume: whoever
// opens, resizes or closes a volume holds that volume's turn (volumes.begin), and nothing
// else. The configuration in force is a pointer that a reload replaces at its end. Locks, in
// the order in which they may be taken:
//
//	Registry.reloading  a reload
//	turn of a group     while its state changes
//	turn of a volume    held while storage works; a reload holds one at a time
//	turn of a place     while something is added there or removed (mapping.begin); nobody waits for the turn of a volume then
//
// and five mutexes under which no other is taken and nobody waits: mapping.mu (what is not as
// the configuration says), volumes.mu (which volumes are open, and where they are served),
// haGroup.mu (its state), asked.mu (what storage is asked for) and watch.mu.
//
// # What a configuration says is brought to life in one package (ADR 122)
//
// Context. Which volumes are open, where they are served and what a reload has to do about it stood in
// package main of iser-target, as methods of one type with a dozen fields. It could only be tested as
// a program, with real storage. One lock was held by whoever opened or closed a volume, and a reload
// made its changes one after the other: storage that did not answer for one volume held up all others.
//
// Decision. target/registry stands above target and takes config's own types: a model between would
// say the same once more. Main is flags, banner, signals, log, metrics and the text of answers.
//
//   - A Registry is the face of parts that have their own fields and locks: stores opens what is
//     behind a volume, volumes keeps what is open, groups moves it between nodes, mapping makes LUNs
//     and namespaces of it, and a reload is a plan (a list of steps, made from two configurations and
//     what is served) that is applied or, in a dry run, judged. No mutex is held while another is
//     taken.
//   - volumes knows which volumes are open and their places, and nothing of targets. Whoever opens,
//     resizes or closes a volume has that volume's turn, which is waited for as long as the caller's
//     context allows. How a volume is opened is a function, which tests replace.
//   - Changes of a reload that wait for storage run beside each other, in order for each volume. What
//     has not come about when the context ends is reported as such, goes on, and tells the log what
//     became of it; the configuration in force has the old value until then, so that the next reload
//     asks again.
//   - Rate limits, workers and the size belong to the volume: they are changed there
//     (target.Server.Volume, blockdev.Resizer), not through one of its LUNs.
//
// Consequences. The order of log lines of a reload is that of the ends of its changes. target.Server
// has lost ResizeLUN, SetQoS and SetWorkers.
package registry
