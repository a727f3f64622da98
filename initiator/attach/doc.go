// Package attach makes a volume a local block device and remembers it:
// "iser-initiator attach", --list and --detach.
//
// One process serves one attachment: sessions on one side, an NBD server on
// the other. What others need to know about it stands in a record, a small
// JSON file in the run directory:
//
//	$ISER_RUN_DIR, else /run/softiser for root, else $XDG_RUNTIME_DIR/softiser,
//	else /tmp/softiser-UID
//	  NAME.json   the record; its process holds a lock on it
//	  NAME.sock   the NBD socket
//
// The lock tells live records from those of processes that were killed: the
// kernel drops it with the process, so nothing is ever stale for long and no
// process id is trusted. Attaching the same volume again finds the record and
// reports it (attach is idempotent); detach sends SIGTERM and waits for the
// lock.
package attach
