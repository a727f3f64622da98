// Package initiator is the client: it logs in to iSCSI targets over iSER (RFC
// 7145, on software iWARP or RoCE) or plain TCP (RFC 7143) and makes their logical
// units block devices.
//
//	lun, err := initiator.Open(ctx, cfg)     // cfg from ParseURL, for example
//	n, err := lun.ReadAt(p, off)             // a blockdev.Device …
//	lun.Submit(&req)                         // … with asynchronous requests
//
// # What happens to a request
//
//	      Submit / ReadAt / Do
//	           |  prepare: range, limits of the LUN
//	           v
//	queue of the session ----> carve: one or more commands,
//	           |                each in a preallocated slot
//	           |  pump: as many as the target's window (MaxCmdSN)
//	           v         and QueueDepth permit
//	      datamover: SCSI Command, immediate data; Data-Out or RDMA Reads
//	           |     by the target; Data-In or RDMA Writes into Request.Buf
//	           v
//	      SCSI Response ----> residual, status, sense ----> Done
//	                                 |
//	                unit attention, BUSY: sent again; if the LUN says that it
//	                has changed, only after the session has looked at it
//
// Nothing is allocated per command, and data is neither staged nor copied
// here: over iSER the target reads and writes Request.Buf itself.
//
// # When the connection is lost
//
// The session logs in again with the same names and ISID (session
// reinstatement), for as long as Config.ReplacementTimeout says, and meanwhile
// holds what is submitted. Commands that were outstanding are sent again if
// repeating them cannot change their result: READ, WRITE, flush, UNMAP, WRITE
// SAME, VERIFY. COMPARE AND WRITE and raw CDBs end with ErrOutcomeUnknown.
// Before anything is sent again the LUN must prove to be the same volume, with
// blocks of the same size.
//
// # Threads
//
// Every method may be called from any goroutine. Done callbacks run on the
// connection's receive goroutine and must not block; they may Submit.
package initiator
