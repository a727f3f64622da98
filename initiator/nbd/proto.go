package nbd

import "encoding/binary"

// Magic numbers. All integers are big-endian.
const (
	magicInit       = 0x4e42444d41474943 // "NBDMAGIC"
	magicOption     = 0x49484156454F5054 // "IHAVEOPT"
	magicOptReply   = 0x0003e889045565a9
	magicRequest    = 0x25609513
	magicSimple     = 0x67446698
	magicStructured = 0x668e33ef
)

// Handshake flags, server and client.
const (
	flagFixedNewstyle = 1 << 0
	flagNoZeroes      = 1 << 1
)

// TransmissionFlags tell a client what an export can do.
type TransmissionFlags uint16

// Transmission flags.
const (
	FlagHasFlags        TransmissionFlags = 1 << 0
	FlagReadOnly        TransmissionFlags = 1 << 1
	FlagSendFlush       TransmissionFlags = 1 << 2
	FlagSendFUA         TransmissionFlags = 1 << 3
	FlagRotational      TransmissionFlags = 1 << 4
	FlagSendTrim        TransmissionFlags = 1 << 5
	FlagSendWriteZeroes TransmissionFlags = 1 << 6
	FlagSendDF          TransmissionFlags = 1 << 7
	FlagCanMultiConn    TransmissionFlags = 1 << 8
	FlagSendCache       TransmissionFlags = 1 << 10
	FlagSendFastZero    TransmissionFlags = 1 << 11
)

// Options of the negotiation.
const (
	optExportName      = 1
	optAbort           = 2
	optList            = 3
	optStartTLS        = 5
	optInfo            = 6
	optGo              = 7
	optStructuredReply = 8
	optListMeta        = 9
	optSetMeta         = 10
)

// Replies to options.
const (
	repAck         = 1
	repServer      = 2
	repInfo        = 3
	repMetaContext = 4

	repErrUnsup   = 1<<31 + 1
	repErrPolicy  = 1<<31 + 2
	repErrInvalid = 1<<31 + 3
	repErrUnknown = 1<<31 + 6
	repErrTooBig  = 1<<31 + 9
)

// Information types of OPT_INFO and OPT_GO.
const (
	infoExport      = 0
	infoName        = 1
	infoDescription = 2
	infoBlockSize   = 3
)

// Command is the type of a request.
type Command uint16

// Commands.
const (
	CmdRead        Command = 0
	CmdWrite       Command = 1
	CmdDisc        Command = 2
	CmdFlush       Command = 3
	CmdTrim        Command = 4
	CmdCache       Command = 5
	CmdWriteZeroes Command = 6
	CmdBlockStatus Command = 7
)

// String returns the protocol's name of c.
func (c Command) String() string {
	if int(c) < len(commandNames) {
		return commandNames[c]
	}
	return "unknown"
}

var commandNames = [...]string{"read", "write", "disc", "flush", "trim", "cache", "write_zeroes", "block_status"}

// Command flags.
const (
	cmdFUA      = 1 << 0
	cmdNoHole   = 1 << 1
	cmdDF       = 1 << 2
	cmdReqOne   = 1 << 3
	cmdFastZero = 1 << 4
)

// Structured reply: flags and chunk types.
const (
	chunkDone = 1 << 0

	chunkNone        = 0
	chunkOffsetData  = 1
	chunkBlockStatus = 5
	chunkError       = 1<<15 + 1
)

// base:allocation states.
const (
	stateHole = 1 << 0
	stateZero = 1 << 1
)

// Limits of what this server accepts and advertises.
const (
	maxPayload    = 32 << 20 // bytes of one READ or WRITE; the protocol's usual limit
	preferredSize = 64 << 10 // advertised preferred size, see blockSizes
	maxName       = 4096     // longest export name, as the protocol says
	maxOptData    = 64 << 10 // longest option
	maxOptions    = 128      // options of one negotiation
	requestSize   = 28
)

// request is the header of a request:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                       magic 0x25609513                        |
//	+-------------------------------+-------------------------------+
//	|         command flags         |             type              |
//	+-------------------------------+-------------------------------+
//	|                                                               |
//	+                            cookie                             +
//	|                                                               |
//	+---------------------------------------------------------------+
//	|                                                               |
//	+                            offset                             +
//	|                                                               |
//	+---------------------------------------------------------------+
//	|                            length                             |
//	+---------------------------------------------------------------+
type request struct {
	flags  uint16
	cmd    Command
	cookie uint64
	off    uint64
	n      uint32
}

// parseRequest decodes the 28 bytes of p; ok=false: the stream is out of step.
func parseRequest(p []byte) (r request, ok bool) {
	be := binary.BigEndian
	return request{
		flags: be.Uint16(p[4:]), cmd: Command(be.Uint16(p[6:])),
		cookie: be.Uint64(p[8:]), off: be.Uint64(p[16:]), n: be.Uint32(p[24:]),
	}, be.Uint32(p) == magicRequest
}

// putSimple writes a simple reply header, 16 bytes:
//
//	+---------------------------------------------------------------+
//	|                       magic 0x67446698                        |
//	+---------------------------------------------------------------+
//	|                             error                             |
//	+---------------------------------------------------------------+
//	|                            cookie                             |
//	+                                                               +
//	|                                                               |
//	+---------------------------------------------------------------+
func putSimple(p []byte, errno uint32, cookie uint64) int {
	binary.BigEndian.PutUint32(p, magicSimple)
	binary.BigEndian.PutUint32(p[4:], errno)
	binary.BigEndian.PutUint64(p[8:], cookie)
	return 16
}

// putChunk writes the header of a structured reply that is one chunk, 20 bytes:
//
//	+---------------------------------------------------------------+
//	|                       magic 0x668e33ef                        |
//	+-------------------------------+-------------------------------+
//	|            flags              |             type              |
//	+-------------------------------+-------------------------------+
//	|                            cookie                             |
//	+                                                               +
//	|                                                               |
//	+---------------------------------------------------------------+
//	|                       length of payload                       |
//	+---------------------------------------------------------------+
func putChunk(p []byte, typ uint16, cookie uint64, n int) int {
	binary.BigEndian.PutUint32(p, magicStructured)
	binary.BigEndian.PutUint16(p[4:], chunkDone)
	binary.BigEndian.PutUint16(p[6:], typ)
	binary.BigEndian.PutUint64(p[8:], cookie)
	binary.BigEndian.PutUint32(p[16:], uint32(n))
	return 20
}
