package nvme

import "fmt"

// Opcode is the first byte of a command. Bits 1:0 give the direction of its data:
// 0 none, 1 from the host, 2 to the host. Admin and I/O queues number their
// commands apart; 7Fh is a Fabrics command on both.
type Opcode uint8

// Admin commands.
const (
	AdminGetLogPage       Opcode = 0x02
	AdminIdentify         Opcode = 0x06
	AdminAbort            Opcode = 0x08
	AdminSetFeatures      Opcode = 0x09
	AdminGetFeatures      Opcode = 0x0A
	AdminAsyncEvent       Opcode = 0x0C
	AdminNamespaceMgmt    Opcode = 0x0D
	AdminNamespaceAttach  Opcode = 0x15
	AdminKeepAlive        Opcode = 0x18
	AdminFormatNVM        Opcode = 0x80
	AdminSanitize         Opcode = 0x84
	OpFabrics             Opcode = 0x7F // on every queue
	OpFlush               Opcode = 0x00
	OpWrite               Opcode = 0x01
	OpRead                Opcode = 0x02
	OpWriteUncorrectable  Opcode = 0x04
	OpCompare             Opcode = 0x05
	OpWriteZeroes         Opcode = 0x08
	OpDatasetManagement   Opcode = 0x09
	OpVerify              Opcode = 0x0C
	OpReservationRegister Opcode = 0x0D
	OpReservationReport   Opcode = 0x0E
	OpReservationAcquire  Opcode = 0x11
	OpReservationRelease  Opcode = 0x15
	OpCopy                Opcode = 0x19
)

var adminNames = map[Opcode]string{
	AdminGetLogPage: "Get Log Page", AdminIdentify: "Identify", AdminAbort: "Abort", AdminSetFeatures: "Set Features",
	AdminGetFeatures: "Get Features", AdminAsyncEvent: "Asynchronous Event Request", AdminNamespaceMgmt: "Namespace Management",
	AdminNamespaceAttach: "Namespace Attachment", AdminKeepAlive: "Keep Alive", AdminFormatNVM: "Format NVM", AdminSanitize: "Sanitize",
	OpFabrics: "Fabrics",
}

var ioNames = map[Opcode]string{
	OpFlush: "Flush", OpWrite: "Write", OpRead: "Read", OpWriteUncorrectable: "Write Uncorrectable", OpCompare: "Compare",
	OpWriteZeroes: "Write Zeroes", OpDatasetManagement: "Dataset Management", OpVerify: "Verify", OpReservationRegister: "Reservation Register",
	OpReservationReport: "Reservation Report", OpReservationAcquire: "Reservation Acquire", OpReservationRelease: "Reservation Release",
	OpCopy: "Copy", OpFabrics: "Fabrics",
}

// AdminName returns the name of an admin command.
func (o Opcode) AdminName() string { return name(adminNames, o) }

// IOName returns the name of a command of an I/O queue.
func (o Opcode) IOName() string { return name(ioNames, o) }

func name(names map[Opcode]string, o Opcode) string {
	if s, ok := names[o]; ok {
		return s
	}
	return fmt.Sprintf("opcode %02xh", uint8(o))
}

// FromHost reports whether a command with this opcode carries data of the host.
func (o Opcode) FromHost() bool { return o&3 == 1 }

// ToHost reports whether a command with this opcode returns data.
func (o Opcode) ToHost() bool { return o&3 == 2 }

// FabricsType tells the Fabrics commands apart. Its bits 1:0 give the direction of
// the data, as an opcode's do.
type FabricsType uint8

// Fabrics commands.
const (
	FabricsPropertySet FabricsType = 0x00
	FabricsConnect     FabricsType = 0x01
	FabricsPropertyGet FabricsType = 0x04
	FabricsAuthSend    FabricsType = 0x05
	FabricsAuthReceive FabricsType = 0x06
	FabricsDisconnect  FabricsType = 0x08
)

// String returns the command's name.
func (f FabricsType) String() string {
	switch f {
	case FabricsPropertySet:
		return "Property Set"
	case FabricsConnect:
		return "Connect"
	case FabricsPropertyGet:
		return "Property Get"
	case FabricsAuthSend:
		return "Authentication Send"
	case FabricsAuthReceive:
		return "Authentication Receive"
	case FabricsDisconnect:
		return "Disconnect"
	}
	return fmt.Sprintf("fabrics command %02xh", uint8(f))
}

// Fuse is the place of a command in a fused operation.
type Fuse uint8

// Places in a fused operation.
const (
	FuseNone   Fuse = 0
	FuseFirst  Fuse = 1
	FuseSecond Fuse = 2
)
