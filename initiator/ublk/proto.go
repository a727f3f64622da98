package ublk

import (
	"encoding/binary"
	"fmt"
	"unsafe"
)

// Commands of the control device. Kernels from 6.5 on take them as ioctl numbers
// (UBLK_F_CMD_IOCTL_ENCODE), those before as they are here.
const (
	cmdGetDevInfo    = 0x02
	cmdAddDev        = 0x04
	cmdDelDev        = 0x05
	cmdStartDev      = 0x06
	cmdStopDev       = 0x07
	cmdSetParams     = 0x08
	cmdStartRecovery = 0x10
	cmdEndRecovery   = 0x11
	cmdGetFeatures   = 0x13 // encoded only
	cmdDelDevAsync   = 0x14 // encoded only, 6.10
	cmdUpdateSize    = 0x15 // encoded only, with featureUpdateSize
)

// Commands of a queue.
const (
	ioFetch  = 0x20
	ioCommit = 0x21 // and fetch
)

// Directions of an ioctl number.
const (
	iocWrite = 1
	iocRead  = 2
)

// encodeControl is the ioctl number of a control command.
func encodeControl(cmd uint32) uint32 {
	dir := uint32(iocRead | iocWrite)
	switch cmd {
	case cmdGetDevInfo, cmdGetFeatures, cmdDelDevAsync:
		dir = iocRead
	}
	return ioc(dir, cmd, controlSize)
}

// encodeIO is the ioctl number of a queue's command.
func encodeIO(cmd uint32) uint32 { return ioc(iocRead|iocWrite, cmd, ioCmdSize) }

func ioc(dir, nr, size uint32) uint32 { return dir<<30 | size<<16 | 'u'<<8 | nr }

// Features of a device (UBLK_F_*): asked for when it is added, and answered.
const (
	featureRecovery   = 1 << 3
	featureReissue    = 1 << 4
	featureEncoded    = 1 << 6
	featureUpdateSize = 1 << 10
)

// States of a device.
const (
	stateDead     = 0
	stateLive     = 1
	stateQuiesced = 2 // its server has gone, and may come back
)

// Operations and flags of a request, in its descriptor.
const (
	opRead        = 0
	opWrite       = 1
	opFlush       = 2
	opDiscard     = 3
	opWriteZeroes = 5
	opMask        = 0xff

	flagFUA     = 1 << 13
	flagNoUnmap = 1 << 15
)

// maxDepth is what the driver takes for one queue; the descriptors of each queue begin at a
// multiple of that many in the character device.
const maxDepth = 4096

// host is the byte order of the driver's structures.
var host = binary.NativeEndian

const controlSize = 32

// control is struct ublksrv_ctrl_cmd, the head of every control command.
type control struct {
	dev   uint32 // anyDevice: the driver chooses
	queue uint16 // noQueue
	len   uint16 // of what addr names
	addr  uint64
	data  uint64
}

const (
	anyDevice = 1<<32 - 1
	noQueue   = 1<<16 - 1
)

func (c *control) put(b []byte) {
	host.PutUint32(b[0:], c.dev)
	host.PutUint16(b[4:], c.queue)
	host.PutUint16(b[6:], c.len)
	host.PutUint64(b[8:], c.addr)
	host.PutUint64(b[16:], c.data)
	host.PutUint64(b[24:], 0)
}

const infoSize = 64

// info is struct ublksrv_ctrl_dev_info.
type info struct {
	queues, depth, state uint16
	maxIO                uint32 // bytes
	dev                  uint32
	pid                  int32 // of the server that has started it
	features             uint64
	mark                 uint64 // the server's own (ublksrv_flags): whose device it is
}

func (i *info) put(b []byte) {
	clear(b[:infoSize])
	host.PutUint16(b[0:], i.queues)
	host.PutUint16(b[2:], i.depth)
	host.PutUint16(b[4:], i.state)
	host.PutUint32(b[8:], i.maxIO)
	host.PutUint32(b[12:], i.dev)
	host.PutUint32(b[16:], uint32(i.pid))
	host.PutUint64(b[24:], i.features)
	host.PutUint64(b[32:], i.mark)
}

func (i *info) get(b []byte) {
	*i = info{
		queues: host.Uint16(b[0:]), depth: host.Uint16(b[2:]), state: host.Uint16(b[4:]),
		maxIO: host.Uint32(b[8:]), dev: host.Uint32(b[12:]), pid: int32(host.Uint32(b[16:])),
		features: host.Uint64(b[24:]), mark: host.Uint64(b[32:]),
	}
}

// Attributes in params.
const (
	attrReadOnly   = 1 << 0
	attrRotational = 1 << 1
	attrCache      = 1 << 2 // volatile
	attrFUA        = 1 << 3
)

const (
	paramsSize = 64

	paramBasic   = 1 << 0
	paramDiscard = 1 << 1
)

// params are the parts of struct ublk_params that are used: the basic ones and discard.
type params struct {
	attrs                         uint32
	logical, physical, opt, ioMin uint8  // logarithms of bytes
	maxSectors                    uint32 // of one request
	sectors                       uint64 // of the device
	granularity                   uint32 // of a discard, bytes
	maxDiscard, maxZeroes         uint32 // sectors
}

func (p *params) put(b []byte) {
	clear(b[:paramsSize])
	host.PutUint32(b[0:], paramsSize)
	host.PutUint32(b[4:], paramBasic|paramDiscard)
	host.PutUint32(b[8:], p.attrs)
	b[12], b[13], b[14], b[15] = p.logical, p.physical, p.opt, p.ioMin
	host.PutUint32(b[16:], p.maxSectors)
	host.PutUint64(b[24:], p.sectors)
	host.PutUint32(b[44:], p.granularity)
	host.PutUint32(b[48:], p.maxDiscard)
	host.PutUint32(b[52:], p.maxZeroes)
	host.PutUint16(b[56:], 1) // segments of a discard
}

const sector = 512

const descSize = 24

// descriptor is struct ublksrv_io_desc: one request. The driver writes it before it
// completes the fetch of its tag.
type descriptor struct {
	opFlags uint32
	sectors uint32
	start   uint64 // sector
}

func (d *descriptor) get(b []byte) {
	*d = descriptor{host.Uint32(b[0:]), host.Uint32(b[4:]), host.Uint64(b[8:])}
}

const ioCmdSize = 16

// ioCommand is struct ublksrv_io_cmd: the command of a queue for one tag.
type ioCommand struct {
	queue, tag uint16
	result     int32  // of the request, with ioCommit
	addr       uint64 // of the tag's buffer
}

func (c *ioCommand) put(b []byte) {
	host.PutUint16(b[0:], c.queue)
	host.PutUint16(b[2:], c.tag)
	host.PutUint32(b[4:], uint32(c.result))
	host.PutUint64(b[8:], c.addr)
}

// addressOf is what the kernel calls the memory of b, which must not be the Go heap's unless
// it is pinned.
func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// number parses the N of a path such as /dev/ublkbN.
func number(path, prefix string) (uint32, error) {
	var n uint32
	if k, err := fmt.Sscanf(path, prefix+"%d", &n); k != 1 || err != nil || fmt.Sprintf("%s%d", prefix, n) != path {
		return 0, fmt.Errorf("ublk: %s is no ublk device", path)
	}
	return n, nil
}
