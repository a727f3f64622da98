package iscsitcp

import (
	"encoding/binary"
	"runtime/debug"

	"softiser/internal/crc32c"
)

// Digests are CRC32C, least significant byte first (RFC 7143 §13.1).

func appendDigest(dst []byte, crc uint32) []byte { return binary.LittleEndian.AppendUint32(dst, crc) }

// crcOf continues crc over segs. ok is false if the memory cannot be read: it may
// be a mapping of a file that has been truncated, so a fault must not be fatal.
func crcOf(crc uint32, segs [][]byte) (sum uint32, ok bool) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if e := recover(); e != nil {
			if _, fault := e.(interface{ Addr() uintptr }); !fault {
				panic(e)
			}
			sum, ok = 0, false
		}
	}()
	for _, s := range segs {
		crc = crc32c.Update(crc, s)
	}
	return crc, true
}

// copyGuarded is copy for memory that may fault.
func copyGuarded(dst, src []byte) (n int, ok bool) {
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if e := recover(); e != nil {
			if _, fault := e.(interface{ Addr() uintptr }); !fault {
				panic(e)
			}
			n, ok = 0, false
		}
	}()
	return copy(dst, src), true
}
