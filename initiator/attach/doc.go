// Package attach makes a volume a local block device and remembers it:
// "iser-initiator attach", --list and --detach.
//
// One process serves one attachment: sessions on one side, an NBD server on
// the other. What others need to know about it stands in a record, a small
// JSON file in the run directory:
//
//	$ISER_RUN_DIR, else /run/softiser-attach for root, else $XDG_RUNTIME_DIR/softiser,
//	else /tmp/softiser-UID
//	  NAME.json   the record; its process holds a lock on it
//	  NAME.sock   the NBD socket
//	  NAME.ctl    the control socket, over which another process takes its place
//
// The lock tells live records from those of processes that were killed: the
// kernel drops it with the process, so nothing is ever stale for long and no
// process id is trusted. Attaching the same volume again finds the record and
// reports it (attach is idempotent); detach sends SIGTERM and waits for the
// lock.
//
// # Another process takes its place
//
//	old process                        new process (TakeOver)
//	clients come to rest (freeze)
//	    ───── sockets, connections, record ────▶  looks at all of it, touches nothing
//	    ◀──────────────── ready ───────────────
//	    ───────────────── yours ───────────────▶  serves the clients, whose requests wait
//	ends                                          opens the volume: with the session of the old
//	                                              process, or under the same names (reopened)
//
// Package handover says how the two agree, ADR 210 why it is as it is.
//
// # Local devices are served over NBD (ADR 72)
//
// Context. attach has to work without root and without kernel modules, and give a kernel block device
// where that is possible. Candidates were ublk (needs io_uring commands, a recent kernel and root),
// NBD, and FUSE.
//
// Decision. An NBD server of our own on a unix socket, everywhere: qemu, nbdcopy, fio, nbdfuse use it
// as it is. /dev/nbdN is made over generic netlink with a socket pair whose other end the same server
// serves, where the kernel has the driver.
//
// Replies are sent by whoever finds replies and no sender. On the session's receive goroutine that
// happens only when no request is under way any more (queue depth 1 has no hop, and nothing could join
// the batch) and never blocks; otherwise the send goroutine is woken and finds the rest of the batch
// queued.
//
// Payload below 32 KiB is copied out of the read-ahead buffer; above, it is read straight into the
// buffer that iSER sends from. READ payload goes from the buffer that the target filled to the socket.
//
// CAN_MULTI_CONN is true because a flush on any connection is SYNCHRONIZE CACHE on the one LUN. The
// minimum block size is the LUN's: requests that are not multiples are refused, not turned into
// read-modify-write, which would not be atomic against other connections.
//
// Consequences. Losing the target is invisible to NBD clients for --replacement-timeout; the session
// replays; when the target has lost power and with it writes that were not flushed, the next flush
// fails with EIO (ADR 79). At the end of an attachment the kernel is made to write back what it holds
// of /dev/nbdN first, for another process may have it open, and the last close, at which it would do
// so, comes too late. NBD has no event for a changed size: clients see it when they connect again,
// /dev/nbdN is told over netlink.
//
// --device ublk makes /dev/ublkbN instead, served by package ublk; the NBD socket is there all the
// same. Such a device outlives its process where the way to the volume allows it: the driver then gives
// what was under way to the next process once more, and a write that the target still has of the former
// must not come after those. The sessions of such an attachment therefore have an ISID that follows from
// boot, run directory and URL: the login of the next process reinstates them, by which the target ends
// what it had of the former. NVMe has nothing of the kind, and --all-portals gives each path an ISID of
// its own; there the device ends with its process. The driver keeps a mark of 64 bits from the same
// source for us, by which attach, --list and --detach find the device of a process that was killed.
//
// # An attachment is a locked file (ADR 73)
//
// Context. Attach must be idempotent, detach must find the process, and neither may trust a process id
// that could have been used again, nor leave records of killed processes in the way.
//
// Decision. One record file per volume in the run directory, locked with flock by the serving process
// for as long as it lives. Attach takes the lock or reports the record of whoever has it; list and
// detach treat an unlocked record as dead and remove it; detach sends SIGTERM to the process of a
// locked record and waits for the lock. The record's name is a hash of the volume's URL without
// secrets.
//
// A /dev/nbdN outlives a process that is killed, without a server. The driver is told a random mark as its back end
// (Linux 5.14), which the record has, too: by that list and detach know it again, and the next attach disconnects it, or,
// where it is in use, gives it a record of its own. Older drivers keep no mark; there nbd-client -d ends it.
//
// Consequences. No daemon, no database, and after kill -9 nothing to clean up but that. The run directory must be
// ours (owner checked). A mounted device is not detached.
package attach
