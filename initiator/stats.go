package initiator

// Stats counts what sessions did since they were dialled. Bytes are payload of
// SCSI commands.
type Stats struct {
	Commands    uint64 // commands sent, retries and replays included
	Completed   uint64 // commands answered
	Errors      uint64 // requests that ended with an error
	ReadBytes   uint64
	WriteBytes  uint64
	Outstanding int // commands at the target now
	Waiting     int // requests not fully sent now

	Retries        uint64 // commands sent again after BUSY, TASK SET FULL or a unit attention
	Replayed       uint64 // commands sent again after a reconnect
	OutcomeUnknown uint64 // commands ended with ErrOutcomeUnknown
	Aborts         uint64 // ABORT TASK sent
	Resets         uint64 // LUN RESET sent
	Losses         uint64 // connections lost
	Logins         uint64 // successful logins
	LoginFailures  uint64 // failed attempts to log in again
	Pings          uint64 // NOP-Out pings answered

	// Of the datamovers, over all connections.
	PDUsIn, PDUsOut         uint64
	PayloadCopied           uint64 // payload bytes copied in user space (payload_copied_bytes)
	ReceiveCalls, SendCalls uint64 // system calls that moved data
}
