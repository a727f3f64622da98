package onefile

import "encoding/binary"

// Opcodes.
const (
	opLookup      = 1
	opForget      = 2
	opGetattr     = 3
	opSetattr     = 4
	opOpen        = 14
	opRead        = 15
	opWrite       = 16
	opStatfs      = 17
	opRelease     = 18
	opFsync       = 20
	opFlush       = 25
	opInit        = 26
	opOpendir     = 27
	opReleasedir  = 29
	opAccess      = 34
	opInterrupt   = 36
	opDestroy     = 38
	opBatchForget = 42
)

const (
	flagBigWrites    = 1 << 5 // of initOut
	flagMaxPages     = 1 << 22
	setSize          = 1 << 3 // of setattrIn
	notifyInvalInode = 2      // in place of an error
)

// The structures of linux/fuse.h, field by field, as encode and decode move them: in the byte
// order of the machine, and with padding only where it is named.
type (
	// inHeader begins every request, outHeader every answer.
	inHeader struct {
		Len, Op          uint32
		Unique, Node     uint64
		UID, GID, PID, _ uint32
	}
	outHeader struct {
		Len    uint32
		Error  int32
		Unique uint64
	}

	initOut struct {
		Major, Minor, MaxReadahead, Flags  uint32
		MaxBackground, CongestionThreshold uint16
		MaxWrite, TimeGran                 uint32
		MaxPages, MapAlignment             uint16
		_                                  [8]uint32
	}
	attr struct {
		Inode, Size, Blocks                                uint64
		Atime, Mtime, Ctime                                uint64
		AtimeNsec, MtimeNsec, CtimeNsec                    uint32
		Mode, Links, UID, GID, Device, BlockSize, AttrFlag uint32
	}
	entryOut struct {
		Node, Generation          uint64
		EntryValid, AttrValid     uint64
		EntryValidNsec, ValidNsec uint32
		Attr                      attr
	}
	attrOut struct {
		Valid        uint64
		ValidNsec, _ uint32
		Attr         attr
	}
	setattrIn struct {
		Valid, _ uint32
		Handle   uint64
		Size     int64
		_        [8]uint64 // lock owner, times, mode, owner
	}
	openOut struct {
		Handle   uint64
		Flags, _ uint32
	}
	readIn struct {
		Handle          uint64
		Offset          int64
		Size, ReadFlags uint32
		LockOwner       uint64
		Flags, _        uint32
	}
	writeIn struct { // the data follows
		Handle           uint64
		Offset           int64
		Size, WriteFlags uint32
		LockOwner        uint64
		Flags, _         uint32
	}
	writeOut struct {
		Size, _ uint32
	}
	statfsOut struct {
		Blocks, Free, Available, Files, FreeFiles uint64
		BlockSize, NameLen, FragmentSize          uint32
		_                                         [7]uint32
	}
	invalInode struct { // a message of ours, which answers nothing
		outHeader
		Node, Offset, Length uint64
	}
)

// encode is the bytes of one of these.
func encode(v any) []byte {
	b, err := binary.Append(nil, binary.NativeEndian, v)
	if err != nil {
		panic(err) // not one of these
	}
	return b
}

// decode reads one of these from the beginning of b, and returns what is behind it.
func decode(b []byte, v any) (rest []byte, err error) {
	n, err := binary.Decode(b, binary.NativeEndian, v)
	if err != nil {
		return nil, err
	}
	return b[n:], nil
}
