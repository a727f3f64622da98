package iscsi_test

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"strings"
	"testing"

	"softiser/internal/iscsi"
	"softiser/internal/iscsi/datamovertest"
	"softiser/internal/pcaptest"
)

// unit is one PDU of a captured stream.
type unit struct {
	bhs  iscsi.BHS
	data []byte
}

// readStream cuts one direction of a captured connection into PDUs, checking
// padding and digests, and encodes each again.
func readStream(t *testing.T, b []byte, hd, dd *bool) []unit {
	t.Helper()
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	var us []unit
	for len(b) > 0 {
		if len(b) < iscsi.BHSLen {
			t.Fatalf("%d bytes are left over", len(b))
		}
		whole := b
		u := unit{bhs: iscsi.BHS(b)}
		op := u.bhs.Opcode()
		login := op == iscsi.OpLoginRequest || op == iscsi.OpLoginResponse
		at := iscsi.BHSLen + u.bhs.AHSLen()
		var out []byte
		re := datamovertest.Reencode(&u.bhs)
		out = append(out, re[:]...)
		out = append(out, b[iscsi.BHSLen:at]...)
		if *hd && !login {
			out = binary.LittleEndian.AppendUint32(out, crc32.Checksum(out, castagnoli))
			at += iscsi.DigestLen
		}
		n := u.bhs.DataLen()
		u.data = b[at : at+n]
		if op.Info().Data == false && n > 0 {
			t.Errorf("%s with %d bytes of data", op, n)
		}
		payload := u.data
		if op == iscsi.OpTextRequest || op == iscsi.OpTextResponse || login {
			payload = reencodeText(t, u.data)
		}
		out = append(out, payload...)
		out = append(out, make([]byte, iscsi.PadLen(n))...)
		if *dd && !login && n > 0 {
			out = binary.LittleEndian.AppendUint32(out, crc32.Checksum(out[at:], castagnoli))
		}
		if !bytes.Equal(out, whole[:min(len(out), len(whole))]) {
			t.Fatalf("%s encoded again differs:\n% x\n% x", op, out, whole[:min(len(out), len(whole))])
		}
		b = b[len(out):]
		us = append(us, u)
	}
	return us
}

// reencodeText parses text and writes it again; what follows the last pair (NULs)
// is kept.
func reencodeText(t *testing.T, data []byte) []byte {
	t.Helper()
	kvs, err := iscsi.ParseText(data)
	if err != nil {
		t.Fatal(err)
	}
	var out []byte
	for _, kv := range kvs {
		out = iscsi.AppendKey(out, kv.Key, kv.Value)
	}
	if rest := data[min(len(out), len(data)):]; len(bytes.Trim(rest, "\x00")) == 0 {
		out = append(out, rest...)
	}
	return out
}

// Every PDU that open-iscsi and LIO exchange is decoded and encoded again to the
// same bytes, digests included.
func TestCaptures(t *testing.T) {
	seen := map[iscsi.Opcode]int{}
	digests := 0
	for _, name := range pcaptest.Names(t, "iscsi-tcp") {
		t.Run(name, func(t *testing.T) {
			for _, c := range pcaptest.Open(t, name) {
				if len(c.C2S) == 0 {
					continue
				}
				// What login negotiates applies to all PDUs but login's own.
				hd := strings.Contains(string(c.S2C), "HeaderDigest=CRC32C\x00")
				dd := strings.Contains(string(c.S2C), "DataDigest=CRC32C\x00")
				if hd || dd {
					digests++
				}
				for _, stream := range [][]byte{c.C2S, c.S2C} {
					for _, u := range readStream(t, stream, &hd, &dd) {
						seen[u.bhs.Opcode()]++
					}
				}
			}
		})
	}
	for _, op := range []iscsi.Opcode{iscsi.OpLoginRequest, iscsi.OpLoginResponse, iscsi.OpSCSICommand, iscsi.OpSCSIResponse,
		iscsi.OpDataIn, iscsi.OpDataOut, iscsi.OpR2T, iscsi.OpTextRequest, iscsi.OpTextResponse, iscsi.OpLogoutReq, iscsi.OpLogoutResp} {
		if seen[op] == 0 {
			t.Errorf("no %s in the captures", op)
		}
	}
	if digests == 0 {
		t.Error("no connection with digests in the captures")
	}
	t.Log(seen)
}

// open-iscsi's logins are accepted by our target, up to the proof of CHAP, which
// needs the challenge of that time.
func TestCapturedLogins(t *testing.T) {
	n := 0
	for _, name := range pcaptest.Names(t, "iscsi-tcp") {
		for _, c := range pcaptest.Open(t, name) {
			b, no := c.C2S, false
			var logins []unit
			for len(b) >= iscsi.BHSLen && iscsi.Opcode(b[0]&0x3f) == iscsi.OpLoginRequest {
				h := iscsi.BHS(b)
				end := iscsi.BHSLen + h.DataLen() + iscsi.PadLen(h.DataLen())
				logins = append(logins, readStream(t, b[:end], &no, &no)...)
				b = b[end:]
			}
			if len(logins) == 0 {
				continue
			}
			chap := strings.Contains(string(logins[0].data), "AuthMethod=CHAP")
			lt := iscsi.NewLoginTarget(iscsi.LoginTargetConfig{
				Admit: func(id *iscsi.LoginIdentity) (*iscsi.LoginGrant, error) {
					if err := iscsi.CheckName(id.InitiatorName); err != nil {
						t.Error(err)
					}
					g := &iscsi.LoginGrant{Settings: iscsi.DefaultSettings(), PortalGroupTag: 1}
					if chap {
						g.Auth = iscsi.TargetAuth{Required: true, Lookup: func(string) (iscsi.Secret, bool) { return iscsi.Secret("x"), true }}
					}
					return g, nil
				},
				Bind: func(r *iscsi.LoginResult) (iscsi.LoginBinding, error) {
					return iscsi.LoginBinding{TSIH: 1, ExpCmdSN: r.CmdSN, MaxCmdSN: r.CmdSN}, nil
				},
			})
			for i, u := range logins {
				var resp iscsi.PDU
				done, err := lt.Handle(&iscsi.PDU{BHS: u.bhs, Data: u.data}, &resp)
				proof := strings.Contains(string(u.data), "CHAP_R=")
				if err != nil && !proof {
					t.Fatalf("%s: request %d %q: %v", name, i, u.data, err)
				}
				if proof {
					if err == nil {
						t.Errorf("%s: the proof for another challenge was accepted", name)
					}
					break
				}
				if i == len(logins)-1 && !done {
					t.Errorf("%s: login is not complete; last answer % x %q", name, resp.BHS, resp.Data)
				}
			}
			n++
		}
	}
	if n == 0 {
		t.Fatal("no logins in the captures")
	}
}
