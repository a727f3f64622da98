// Package volume is what belongs to a volume whichever wire reaches it. It knows no
// protocol: front ends (target/scsi) translate theirs into its terms.
//
//	front end                          volume                             device
//	  Request (an Op in each slot)
//	    -- Admit -->  task set: order, ranges ------------+
//	    <-- Step --   workers, rate limit, exclusives     |
//	    -- Forbids, Gates: when it takes effect           |
//	    ---------------- LeaseRead, Lender, WriteAt … ----+---------------->  blockdev
//	    -- Leave -->
//	  Client -- Register, Reserve, Preempt … --> reservations --> state file
//	  Face   <-- Notify: geometry, space, reservations --
//
// A [Volume] is one device with one task set, one set of reservations, one rate limit,
// one pool of workers, one undo journal and one state file, at however many places it is
// served: LUNs of several targets, and whatever else implements [Face]. [Registry.Map]
// makes a [Place] of it, and the volume ends with its last place.
//
// An [Op] is a command in execution. It is embedded in the slot of its front end and
// reaches it by [Request], so that nothing is allocated for a command. Its states, and
// the table of transitions, are in op.go. A [Client] is who asks; it is the address that
// commands, copies and events have in common, and its [Registrant] the name that
// survives it.
//
// A check that decides whether data may change (reservation, write protection, a
// rewrite that runs) is made when the command arrives and again when it takes effect,
// by whichever wire it came; background operations (copies, rewrites) obey the same.
//
// Locks, in the order in which they may be taken:
//
//	Registry.mu  volumes and their places; never per command, never across I/O
//	Journal.mu   the undo journal; held across I/O of one atomic write
//	state.mu     changes of reservations and of what is kept; held across fsync
//	Rewriter.mu  progress and kind of a rewrite
//	Space.mu     thresholds
//	pathMu       the access state through each portal group
//	Tasks.mu     the task set, ranges, rate limit, worker queue; never held across I/O or a call
//	             into a front end, but for the match functions that say so
//
// A function whose name ends in Locked is called with the lock of its type held. What
// every command must see without a lock is published by atomics: geometry, gates,
// access states, the immutable [Reservations].
package volume
