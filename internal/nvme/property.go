package nvme

import "fmt"

// PropertyOffset names a property of a controller by where it lies.
type PropertyOffset uint32

// Properties.
const (
	PropCAP  PropertyOffset = 0x00 // capabilities, 8 bytes
	PropVS   PropertyOffset = 0x08 // version
	PropCC   PropertyOffset = 0x14 // configuration
	PropCSTS PropertyOffset = 0x1C // status
	PropNSSR PropertyOffset = 0x20 // subsystem reset
	PropCRTO PropertyOffset = 0x68 // ready timeouts
)

// Size returns the property's size, bytes: 4 or 8.
func (p PropertyOffset) Size() int {
	if p == PropCAP {
		return 8
	}
	return 4
}

// String names the property.
func (p PropertyOffset) String() string {
	switch p {
	case PropCAP:
		return "CAP"
	case PropVS:
		return "VS"
	case PropCC:
		return "CC"
	case PropCSTS:
		return "CSTS"
	case PropNSSR:
		return "NSSR"
	case PropCRTO:
		return "CRTO"
	}
	return fmt.Sprintf("property %02xh", uint32(p))
}

// Version is a version of the specification: major, minor and tertiary number.
type Version uint32

// Version14 is NVM Express 1.4.
const Version14 Version = 0x10400

// String formats the version as 1.4.0.
func (v Version) String() string { return fmt.Sprintf("%d.%d.%d", v>>16, v>>8&0xFF, v&0xFF) }

// Cap is the controller's capabilities.
//
//	60:59 controller ready modes     44:37 command sets   31:24 timeout, 500 ms
//	55:52 largest page size          36    NSSR           16    contiguous queues
//	51:48 smallest page size         35:32 doorbells      15:0  queue entries - 1
type Cap uint64

// Bits of Cap.
const (
	CapCQR   Cap = 1 << 16 // queues are contiguous; always so over fabrics
	CapNVM   Cap = 1 << 37 // has the NVM command set
	CapIOCS  Cap = 1 << 43 // has Identify's structures of I/O command sets
	CapCRWMS Cap = 1 << 59 // ready means that the media is, too
)

// NewCap makes capabilities: queue entries (2 to 65536), and how long a controller
// may take to be ready, in units of 500 ms.
func NewCap(entries int, timeout uint8, bits Cap) Cap {
	return bits | Cap(entries-1)&0xFFFF | Cap(timeout)<<24
}

// Entries returns how many entries a queue has at most.
func (c Cap) Entries() int { return int(c&0xFFFF) + 1 }

// Timeout returns how long the controller may take to be ready, in units of 500 ms.
func (c Cap) Timeout() uint8 { return uint8(c >> 24) }

// MinPage returns log2 of the smallest memory page, the unit of MDTS.
func (c Cap) MinPage() uint { return 12 + uint(c>>48&0xF) }

// Config is the controller's configuration, CC.
//
//	24    independent ready mode    15:14 shutdown       6:4 command set
//	23:20 log2 of a CQ entry        13:11 arbitration    0   enable
//	19:16 log2 of an SQ entry       10:7  page size
type Config uint32

// Fields of Config.
const (
	ConfigEnable Config = 1

	CommandSetNVM = 0 // of CommandSet
	CommandSetAll = 6 // every one that is supported

	ShutdownNone   = 0
	ShutdownNormal = 1
	ShutdownAbrupt = 2
)

// Enabled reports whether the controller is to process commands.
func (c Config) Enabled() bool { return c&ConfigEnable != 0 }

// CommandSet returns which command sets are to be used.
func (c Config) CommandSet() uint8 { return uint8(c >> 4 & 7) }

// PageSize returns log2 of the memory page, less 12.
func (c Config) PageSize() uint8 { return uint8(c >> 7 & 0xF) }

// Arbitration returns the arbitration mechanism.
func (c Config) Arbitration() uint8 { return uint8(c >> 11 & 7) }

// Shutdown returns the kind of shutdown that is asked for.
func (c Config) Shutdown() uint8 { return uint8(c >> 14 & 3) }

// SQEntry returns log2 of a submission queue entry.
func (c Config) SQEntry() uint8 { return uint8(c >> 16 & 0xF) }

// CQEntry returns log2 of a completion queue entry.
func (c Config) CQEntry() uint8 { return uint8(c >> 20 & 0xF) }

// NewConfig makes the configuration for 64-byte commands and 16-byte completions.
func NewConfig(commandSet uint8, enable bool) Config {
	c := Config(commandSet)<<4 | 6<<16 | 4<<20
	if enable {
		c |= ConfigEnable
	}
	return c
}

// WithShutdown returns c with a shutdown asked for.
func (c Config) WithShutdown(kind uint8) Config { return c&^(3<<14) | Config(kind)<<14 }

// Valid reports whether a controller that has the NVM command set can be enabled
// with c.
func (c Config) Valid() bool {
	set := c.CommandSet()
	return c.SQEntry() == 6 && c.CQEntry() == 4 && c.PageSize() == 0 && c.Arbitration() == 0 && (set == CommandSetNVM || set == CommandSetAll)
}

// CtrlStatus is the controller's status, CSTS.
type CtrlStatus uint32

// Bits of CtrlStatus.
const (
	StatusReady            CtrlStatus = 1 << 0
	StatusFatal            CtrlStatus = 1 << 1
	StatusShuttingDown     CtrlStatus = 1 << 2
	StatusShutdownComplete CtrlStatus = 2 << 2
	statusShutdown         CtrlStatus = 3 << 2
)

// Ready reports whether the controller processes commands.
func (s CtrlStatus) Ready() bool { return s&StatusReady != 0 }

// Fatal reports whether the controller has failed.
func (s CtrlStatus) Fatal() bool { return s&StatusFatal != 0 }

// ShutdownBegun reports whether a shutdown is under way or has ended.
func (s CtrlStatus) ShutdownBegun() bool { return s&statusShutdown != 0 }

// ShutdownDone reports whether a shutdown has ended.
func (s CtrlStatus) ShutdownDone() bool { return s&statusShutdown == StatusShutdownComplete }
