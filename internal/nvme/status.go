package nvme

import (
	"fmt"
	"strings"
)

// Status is the status field of a completion without its phase bit.
//
//	 14  13  12 11 10    8 7                0
//	+---+----+-----+------+------------------+
//	|DNR|More| CRD | type | code             |
//	+---+----+-----+------+------------------+
//
// Type and code together are written as three hexadecimal digits, 182h say.
type Status uint16

// Bits beside type and code.
const (
	DoNotRetry Status = 0x4000 // the same command would fail again
	More       Status = 0x2000 // the error information log knows more
)

// Generic command status.
const (
	Success               Status = 0x000
	InvalidOpcode         Status = 0x001
	InvalidField          Status = 0x002
	CommandIDConflict     Status = 0x003
	DataTransferError     Status = 0x004
	PowerLossAbort        Status = 0x005
	InternalError         Status = 0x006
	AbortRequested        Status = 0x007
	AbortedSQDeletion     Status = 0x008
	AbortedFailedFused    Status = 0x009
	AbortedMissingFused   Status = 0x00A
	InvalidNamespace      Status = 0x00B // or format
	CommandSequenceError  Status = 0x00C
	InvalidSGLLastSegment Status = 0x00D
	InvalidSGLCount       Status = 0x00E
	SGLDataLengthInvalid  Status = 0x00F
	SGLMetadataLength     Status = 0x010
	SGLTypeInvalid        Status = 0x011
	AtomicWriteUnit       Status = 0x014
	OperationDenied       Status = 0x015
	SGLOffsetInvalid      Status = 0x016
	HostIDInconsistent    Status = 0x018
	KeepAliveExpired      Status = 0x019
	KeepAliveInvalid      Status = 0x01A
	AbortedPreempt        Status = 0x01B
	SanitizeFailed        Status = 0x01C
	SanitizeInProgress    Status = 0x01D
	NamespaceWriteProtect Status = 0x020
	CommandInterrupted    Status = 0x021
	TransientTransport    Status = 0x022
	MediaNotReady         Status = 0x024
	LBAOutOfRange         Status = 0x080
	CapacityExceeded      Status = 0x081
	NamespaceNotReady     Status = 0x082
	ReservationConflict   Status = 0x083
	FormatInProgress      Status = 0x084
)

// Command specific status. The Fabrics commands and the NVM commands use the same
// numbers from 180h on.
const (
	QueueIDInvalid         Status = 0x101
	QueueSizeInvalid       Status = 0x102
	AbortLimitExceeded     Status = 0x103
	AERLimitExceeded       Status = 0x105
	InvalidLogPage         Status = 0x109
	InvalidFormat          Status = 0x10A
	FeatureNotSaveable     Status = 0x10D
	FeatureNotChangeable   Status = 0x10E
	FeatureNotPerNamespace Status = 0x10F

	ConnectIncompatibleFormat Status = 0x180
	ConnectControllerBusy     Status = 0x181
	ConnectInvalidParameters  Status = 0x182
	ConnectRestartDiscovery   Status = 0x183
	ConnectInvalidHost        Status = 0x184
	DisconnectInvalidQueue    Status = 0x185
	DiscoveryRestart          Status = 0x190
	AuthenticationRequired    Status = 0x191

	ConflictingAttributes Status = 0x180
	InvalidProtectionInfo Status = 0x181
	ReadOnlyRange         Status = 0x182
	CommandSizeExceeded   Status = 0x183
)

// Media and data integrity errors.
const (
	WriteFault       Status = 0x280
	UnrecoveredRead  Status = 0x281
	GuardCheck       Status = 0x282
	ApplicationCheck Status = 0x283
	ReferenceCheck   Status = 0x284
	CompareFailure   Status = 0x285
	AccessDenied     Status = 0x286
	UnwrittenBlock   Status = 0x287
)

// Path related status. A host with several paths tries another one, but not if
// DNR is set.
const (
	InternalPathError   Status = 0x300
	ANAPersistentLoss   Status = 0x301
	ANAInaccessible     Status = 0x302
	ANATransition       Status = 0x303
	ControllerPathError Status = 0x360
	HostPathError       Status = 0x370
	AbortedByHost       Status = 0x371
)

var statusText = map[Status]string{
	Success: "success", InvalidOpcode: "invalid command opcode", InvalidField: "invalid field in command",
	CommandIDConflict: "command ID conflict", DataTransferError: "data transfer error", PowerLossAbort: "aborted: power loss",
	InternalError: "internal error", AbortRequested: "abort requested", AbortedSQDeletion: "aborted: SQ deletion",
	AbortedFailedFused: "aborted: the other fused command failed", AbortedMissingFused: "aborted: the other fused command is missing",
	InvalidNamespace: "invalid namespace or format", CommandSequenceError: "command sequence error",
	InvalidSGLLastSegment: "invalid SGL last segment descriptor", InvalidSGLCount: "invalid number of SGL descriptors",
	SGLDataLengthInvalid: "data SGL length invalid", SGLMetadataLength: "metadata SGL length invalid",
	SGLTypeInvalid: "SGL descriptor type invalid", AtomicWriteUnit: "atomic write unit exceeded", OperationDenied: "operation denied",
	SGLOffsetInvalid: "SGL offset invalid", HostIDInconsistent: "host identifier of another format", KeepAliveExpired: "keep alive timer expired",
	KeepAliveInvalid: "keep alive timeout invalid", AbortedPreempt: "aborted: reservation preempted", SanitizeFailed: "sanitize failed",
	SanitizeInProgress: "sanitize in progress", NamespaceWriteProtect: "namespace is write protected", CommandInterrupted: "command interrupted",
	TransientTransport: "transient transport error", MediaNotReady: "admin command media not ready", LBAOutOfRange: "LBA out of range",
	CapacityExceeded: "capacity exceeded", NamespaceNotReady: "namespace not ready", ReservationConflict: "reservation conflict",
	FormatInProgress: "format in progress",
	QueueIDInvalid:   "invalid queue identifier", QueueSizeInvalid: "invalid queue size", AbortLimitExceeded: "abort command limit exceeded",
	AERLimitExceeded: "asynchronous event request limit exceeded", InvalidLogPage: "invalid log page", InvalidFormat: "invalid format",
	FeatureNotSaveable: "feature identifier not saveable", FeatureNotChangeable: "feature not changeable",
	FeatureNotPerNamespace:    "feature not namespace specific",
	ConnectIncompatibleFormat: "incompatible format, or conflicting attributes", ConnectControllerBusy: "controller busy, or invalid protection information",
	ConnectInvalidParameters: "connect: invalid parameters, or write to a read only range",
	ConnectRestartDiscovery:  "connect: restart discovery, or command size limit exceeded", ConnectInvalidHost: "connect: invalid host",
	DisconnectInvalidQueue: "disconnect: invalid queue type", DiscoveryRestart: "discovery: restart", AuthenticationRequired: "authentication required",
	WriteFault: "write fault", UnrecoveredRead: "unrecovered read error", GuardCheck: "end-to-end guard check error",
	ApplicationCheck: "end-to-end application tag check error", ReferenceCheck: "end-to-end reference tag check error",
	CompareFailure: "compare failure", AccessDenied: "access denied", UnwrittenBlock: "deallocated or unwritten block",
	InternalPathError: "internal path error", ANAPersistentLoss: "asymmetric access persistent loss",
	ANAInaccessible: "asymmetric access inaccessible", ANATransition: "asymmetric access transition",
	ControllerPathError: "controller pathing error", HostPathError: "host pathing error", AbortedByHost: "command aborted by host",
}

// Code returns type and code without the bits beside them.
func (s Status) Code() Status { return s & 0x7FF }

// Type returns the status code type: 0 generic, 1 command specific, 2 media, 3
// path.
func (s Status) Type() uint8 { return uint8(s >> 8 & 7) }

// Delay returns the number of the command retry delay time, 0 for none.
func (s Status) Delay() uint8 { return uint8(s >> 11 & 3) }

// OK reports whether the command succeeded.
func (s Status) OK() bool { return s.Code() == Success }

// Retryable reports whether the same command may succeed later.
func (s Status) Retryable() bool { return !s.OK() && s&DoNotRetry == 0 }

// Error describes the status, such as "182h do not retry: connect: invalid parameters".
func (s Status) Error() string { return s.String() }

// String describes the status.
func (s Status) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%03xh", uint16(s.Code()))
	if s&DoNotRetry != 0 {
		b.WriteString(" do not retry")
	}
	if t, ok := statusText[s.Code()]; ok {
		b.WriteString(": ")
		b.WriteString(t)
	}
	return b.String()
}
