package ublk

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"softiser/blockdev"
)

// The driver's structures, byte by byte, as a little-endian machine has them.
func TestLayouts(t *testing.T) {
	if host.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the golden bytes are those of a little-endian machine")
	}
	buffer := func(n int) []byte { return bytes.Repeat([]byte{0xee}, n) }
	for name, tc := range map[string]struct {
		put  func([]byte)
		size int
		want string
	}{
		"ublksrv_ctrl_cmd": {(&control{dev: anyDevice, queue: noQueue, len: 64, addr: 0x1122334455667788, data: 9}).put, controlSize,
			"ffffffff ffff 4000 8877665544332211 0900000000000000 0000000000000000"},
		"ublksrv_ctrl_dev_info": {(&info{queues: 2, depth: 128, state: 1, maxIO: 1 << 20, dev: 3, pid: 77, features: 0x458, mark: 0x0102030405060708}).put, infoSize,
			"0200 8000 0100 0000 00001000 03000000 4d000000 00000000 5804000000000000 0807060504030201 000000000000000000000000000000000000000000000000"},
		"ublk_params": {(&params{attrs: 15, logical: 9, physical: 12, opt: 13, ioMin: 11, maxSectors: 2048, sectors: 1 << 33, granularity: 4096, maxDiscard: 7, maxZeroes: 8}).put, paramsSize,
			"40000000 03000000 0f000000 09 0c 0d 0b 00080000 00000000 0000000002000000 0000000000000000 00000000 00100000 07000000 08000000 0100 0000 00000000"},
		"ublksrv_io_cmd": {(&ioCommand{queue: 1, tag: 127, result: -5, addr: 0xabcdef}).put, ioCmdSize,
			"0100 7f00 fbffffff efcdab0000000000"},
	} {
		want, err := hex.DecodeString(strings.ReplaceAll(tc.want, " ", ""))
		if err != nil || len(want) != tc.size {
			t.Fatalf("%s: %v, %d bytes wanted of %d", name, err, len(want), tc.size)
		}
		b := buffer(tc.size)
		if tc.put(b); !bytes.Equal(b, want) {
			t.Errorf("%s\n%x, want\n%x", name, b, want)
		}
	}
	in := info{queues: 2, depth: 128, state: 2, maxIO: 4096, dev: 3, pid: -1, features: 1 << 40, mark: 5}
	b := make([]byte, infoSize)
	in.put(b)
	var out info
	if out.get(b); out != in {
		t.Errorf("info %+v, put was %+v", out, in)
	}
	var d descriptor
	desc, _ := hex.DecodeString("03a0000008000000000100000000000000000000000000ff")
	if d.get(desc); d != (descriptor{0xa003, 8, 256}) {
		t.Errorf("descriptor %+v", d)
	}
}

// The numbers that the header makes of its commands.
func TestEncoding(t *testing.T) {
	for cmd, want := range map[uint32]uint32{
		cmdGetDevInfo: 0x80207502, cmdAddDev: 0xc0207504, cmdDelDev: 0xc0207505, cmdStartDev: 0xc0207506, cmdStopDev: 0xc0207507,
		cmdSetParams: 0xc0207508, cmdStartRecovery: 0xc0207510, cmdEndRecovery: 0xc0207511,
		cmdGetFeatures: 0x80207513, cmdDelDevAsync: 0x80207514, cmdUpdateSize: 0xc0207515,
	} {
		if got := encodeControl(cmd); got != want {
			t.Errorf("command %#x: %#x, want %#x", cmd, got, want)
		}
	}
	if f, c := encodeIO(ioFetch), encodeIO(ioCommit); f != 0xc0107520 || c != 0xc0107521 {
		t.Errorf("fetch %#x, commit %#x", f, c)
	}
}

func TestParameters(t *testing.T) {
	for name, tc := range map[string]struct {
		in       blockdev.Info
		readOnly bool
		want     params
		err      string
	}{
		"512": {in: blockdev.Info{Size: 1 << 20, BlockSize: 512, PhysBlockSize: 4096, Discard: true, DiscardAlign: 65536},
			want: params{attrs: attrCache | attrFUA, logical: 9, physical: 12, opt: 12, ioMin: 12, maxSectors: 2048, sectors: 2048, granularity: 65536, maxDiscard: 1 << 21, maxZeroes: 1 << 21}},
		"4096, rotating, no discard": {in: blockdev.Info{Size: 1 << 30, BlockSize: 4096, Rotational: true},
			want: params{attrs: attrCache | attrFUA | attrRotational, logical: 12, physical: 12, opt: 12, ioMin: 12, maxSectors: 2048, sectors: 1 << 21, granularity: 4096, maxZeroes: 1 << 21}},
		"wished read-only": {in: blockdev.Info{Size: 512, BlockSize: 512, PhysBlockSize: 512, Discard: true}, readOnly: true,
			want: params{attrs: attrCache | attrFUA | attrReadOnly, logical: 9, physical: 9, opt: 9, ioMin: 9, maxSectors: 2048, sectors: 1, granularity: 512}},
		"read-only volume, odd physical block": {in: blockdev.Info{Size: 512, BlockSize: 512, PhysBlockSize: 1536, ReadOnly: true},
			want: params{attrs: attrCache | attrFUA | attrReadOnly, logical: 9, physical: 9, opt: 9, ioMin: 9, maxSectors: 2048, sectors: 1, granularity: 512}},
		"blocks beyond a page": {in: blockdev.Info{Size: 1 << 30, BlockSize: 1 << 17}, err: "blocks of 131072 bytes"},
		"blocks of no power":   {in: blockdev.Info{Size: 1 << 30, BlockSize: 520}, err: "blocks of 520 bytes"},
	} {
		got, err := parametersOf(tc.in, tc.readOnly)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: %v", name, err)
			}
		} else if err != nil || got != tc.want {
			t.Errorf("%s: %+v, %v, want\n%+v", name, got, err, tc.want)
		}
	}
}

func TestNumbers(t *testing.T) {
	if n, err := number("/dev/ublkb17", blockPath); n != 17 || err != nil {
		t.Error(n, err)
	}
	for _, p := range []string{"/dev/ublkb", "/dev/ublkb1p1", "/dev/ublkb01", "/dev/ublkb-1", "/dev/nbd0", "/dev/ublkb4294967296", ""} {
		if n, err := number(p, blockPath); err == nil {
			t.Errorf("%q is %d", p, n)
		}
	}
}
