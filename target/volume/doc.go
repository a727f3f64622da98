// Package volume is what belongs to a volume whichever wire reaches it. It knows no
// protocol: front ends (target/scsi, target/nvmf) translate theirs into its terms.
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
// It consists of parts, each with fields of its own: the medium (the device and its size), gates
// (why commands are refused), [Tasks], reservations, blocks marked as bad (reads and writes of the
// medium go through them), the placement of writes, cache epochs, paths, places, and what goes on in
// the background. A part knows those that it needs; [Rewriter] and [Journal], which are
// commands of a kind, know the volume.
//
// An [Op] is a command in execution. It is embedded in the slot of its front end and
// reaches it by [Request], so that nothing is allocated for a command. Its states, and
// the table of transitions, are in op.go. A [Client] is the sender of commands; it is the address that
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
//	shares.mu    shares of the staging memory
//	Tasks.mu     the task set, ranges, rate limit, worker queue; never held across I/O or a call
//	             into a front end, but for the match functions that say so
//
// A function whose name ends in Locked is called with the lock of its type held. What
// every command must see without a lock is published by atomics: geometry, gates,
// access states, the immutable [Reservations].
//
// # Registrations through a node that does not have the volume (ADR 187)
//
// Context. Hosts with dm-multipath register on all of their paths at once, those on standby too, and
// then write through whichever is active. mpathpersist calls the registration failed if one path
// refuses, and multipathd then does not renew it on paths that come back; before it renews one it asks
// for the keys through that very path. fence_scsi registers on all paths, looks at the active one
// alone, and never comes again: after a failover the host would be refused by a node that does not
// know it (write exclusive, registrants only). LIO answers PERSISTENT RESERVE IN and OUT in standby
// for that reason, within one machine. Here the standby path is another process on another machine,
// and ADR 164 has one owner of the registrations.
//
// Decision. A node that does not have the volume notes REGISTER and REGISTER AND IGNORE EXISTING KEY
// and answers GOOD (target/volume/elsewhere.go). A note gives nobody access and keeps nobody off. At
// promotion, when the registrations of the last owner have been read, a note becomes a registration if
// the same host (the initiator's name without its session, and the user it has proved to be) is
// registered with the same key through another port; a note to end a registration ends it. What comes
// of it is saved before the promotion is over. Then all notes are forgotten.
//
// That keeps what fencing promises: PREEMPT at the owner takes away all registrations with a key, and
// a note with that key is worth nothing from then on, wherever it is. No node need talk to another.
//
// RELEASE succeeds for a host with a note, and does nothing, as for any registrant that is not the
// holder. PERSISTENT RESERVE IN is answered from the shared folder, in which owners save before they
// answer; if it is not here (it moves with the volumes), NOT READY as before. Everything else
// (RESERVE, PREEMPT, CLEAR, REGISTER AND MOVE, SPEC_I_PT) is NOT READY, LOGICAL UNIT NOT ACCESSIBLE,
// STANDBY: it would have to be in force at the owner before it is answered.
//
// Other ways. Handing the command to the owner, through the shared folder or a connection of the
// nodes: for what changes others' rights that would be the only right way, but no host sends that
// through a standby path if it has an active one, and it needs a folder that both reach, or trust
// between nodes that there is none of so far. Registering a host for the ports of all nodes as if it
// had said ALL_TG_PT: a host that has registered one path on purpose would be let in through others.
//
// Consequences. Notes are in memory. After the restart of a standby node multipathd registers anew
// when the path comes back, if the store can be read there (reservation_key file in multipath.conf);
// with fence_scsi the node has to be unfenced again, or the hosts use one address that moves. Between
// nodes without a common folder READ KEYS is refused on standby, and so is multipathd's renewal there.
//
// # Workers answer short writes in batches (ADR 192)
//
// Context. What may wait for storage goes to a worker of the volume (ADR 1), which pushed the answer
// of each command by itself. A random write of 4 KiB to a file, sparse or not yet seen, is such a
// command. 65,536 first writes at depth 32 over iSER took the target 44,600 to 47,500 sendmsg, and
// each woke the initiator up for one answer, which then sent its next command alone. fio's psync wrote
// the same file with 13 µs of CPU an operation, the target with 27 to 34.
//
// Decision. A worker whose steps are short owes the ports their pushes (target/volume/owed.go), and
// pays when its queue is empty, after 16 commands or 200 µs. Short is a step of less than 100 µs;
// eight in a row have to be, of any worker of the volume, and one that is not begins the count anew.
// Only while the next command is a write does it owe anything: a read of what is not in memory and a
// flush wait for the disk as a rule. A write into the page cache waits only where the kernel throttles
// it, and then it holds the inode's lock, so that those behind it would wait as well. Any other push
// of the connection sends what is owed, too.
//
// The receiver of a connection pushes with every batch that it has read, so half of a worker's batch left
// by those pushes. Since 26 November writes that go in turn (turns.go) are therefore made by the worker
// itself (ToWriter), and answered when it pays: a push in between finds nothing. It pays before anything
// that may sync or punch.
//
// Consequences. sendmsg for 65,536 first writes: 44,600–47,500 → 14,300–15,700; all system calls
// 150,000 → 119,000; CPU of the target 1.73–1.93 → 1.64–1.84 s (perf stat, three runs each on a
// machine that others kept busy, load 15; two AMD cores without AVX-512). Of what is left, 45 % are
// the pwritev themselves. An answer may be late by one step that turns out to be long, once for eight
// short ones.
// Answered when it pays: sendmsg for 65,536 first writes on ext4 19,900 → 4,800; CPU of the target 0.90,
// IOPS 1.06 (0.79 to 1.35; 15 paired turns, real-time priority, left free, load 20).
//
// Short reads of what is not in memory are announced to storage as they come, and waited for by few
// workers (reads.go). A worker each had the disk see as many as there were workers, and each of them held a
// processor of Go's scheduler while it waited.
//
// Tried: one or two workers instead of 16 (limits.workers), because ext4 and xfs write to one file at
// a time anyway: 1.75 to 2.6 s of CPU, no gain. Not tried: io_uring for the writes.
package volume
