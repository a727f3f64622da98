// Package scsi is the SCSI device server of the target: it executes commands
// against logical units that are [blockdev.Device] volumes.
//
//	session layer                      device server                     volume
//	  Task, Port   -- Execute -->  lookup, checks, task set
//	                               handler -- LeaseRead, LeaseWrite -->  mapping
//	  DataIn       <-- segments --                or pool
//	  DataOut      <-- segments --
//	               -- DataOutDone -->      -- Commit, Flush ---------->  storage
//	  Respond      <-- status ----
//	               -- Release  -->         -- Lease.Release --------->
//
// A [Device] is one SCSI target device: logical units ([LU]), target port groups
// and I_T nexuses ([Nexus], an initiator port as seen through a target port).
//
// Threads. Execute runs a command on the connection's receive goroutine as far
// as it goes without waiting: a READ whose data are resident is answered there.
// What may wait for storage goes to the bounded worker pool of its logical
// unit, so a slow volume never delays another one on the same connection.
// Nothing in this package waits for a peer while it holds a lock or a worker.
//
// Locks, in the order in which they may be taken:
//
//	Device.mu   LU and nexus registries; never taken per command
//	LU.prMu     serialises changes of reservations and saved state, may be
//	            held across fsync
//	LU.mu       task set, ordering, worker queue, unit attentions
//
// What every command must see without a lock is published by atomics: the LU
// table, the geometry, the gate bits (medium, protection, SANITIZE, FORMAT UNIT), the
// access states of the unit and the immutable reservation snapshot.
//
// References in comments: SAM-5, SPC-4, SBC-3.
package scsi
