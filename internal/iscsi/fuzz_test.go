package iscsi

import (
	"bytes"
	"testing"

	"softiser/internal/pcaptest"
)

// capturedText adds the texts of captured logins and discoveries to a corpus.
func capturedText(f *testing.F) {
	for _, c := range pcaptest.Open(f, "iscsi-tcp-chap") {
		for _, b := range [][]byte{c.C2S, c.S2C} {
			for range 10 {
				if len(b) < BHSLen {
					break
				}
				h := BHS(b)
				n := h.DataLen()
				end := BHSLen + n + PadLen(n)
				if op := h.Opcode(); end > len(b) || op != OpLoginRequest && op != OpLoginResponse && op != OpTextRequest && op != OpTextResponse {
					break
				}
				f.Add(b[BHSLen : BHSLen+n])
				b = b[end:]
			}
		}
	}
}

// Text that parses is written again to an equivalent text.
func FuzzText(f *testing.F) {
	for _, s := range []string{"", "a=b\x00", "InitiatorName=iqn.x\x00SessionType=Discovery\x00", "CHAP_C=0x00ff\x00", "=\x00", "a=b\x00\x00c", "k=v=w\x00"} {
		f.Add([]byte(s))
	}
	capturedText(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		kvs, err := ParseText(b)
		if err != nil {
			return
		}
		var out []byte
		for _, kv := range kvs {
			out = AppendKey(out, kv.Key, kv.Value)
		}
		again, err := ParseText(out)
		if err != nil || len(again) != len(kvs) {
			t.Fatalf("%q became %q: %v", b, out, err)
		}
		for i := range kvs {
			if kvs[i] != again[i] {
				t.Fatalf("%v became %v", kvs[i], again[i])
			}
		}
		_, _ = ParseTargets(b)
	})
}

// CHAP values never panic and stay within their bounds.
func FuzzCHAP(f *testing.F) {
	for _, s := range []string{"CHAP_A=5,6,7,8\x00", "CHAP_A=7\x00CHAP_I=1\x00CHAP_C=0x0102\x00", "CHAP_N=x\x00CHAP_R=0bAAAA\x00", "CHAP_I=256\x00", "CHAP_C=0x\x00"} {
		f.Add([]byte(s))
	}
	capturedText(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		kvs, err := ParseText(b)
		if err != nil {
			return
		}
		k, err := parseCHAP(kvs)
		if err != nil {
			return
		}
		if len(k.challenge) > maxBinary || len(k.response) > maxBinary || k.id > 255 {
			t.Fatalf("%+v", k)
		}
		for _, a := range k.algorithms {
			if a.new() == nil {
				t.Fatalf("algorithm %d", a)
			}
		}
	})
}

// AHS parsing takes every byte once and stays inside.
func FuzzAHS(f *testing.F) {
	f.Add(appendBidiRead(AppendExtendedCDB(nil, make([]byte, 32)), 7))
	f.Add([]byte{0, 0, 0, 0})
	f.Add([]byte{0xff, 0xff, 1, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		_ = ParseAHS(b, func(_ uint8, body []byte) error {
			n += 3 + len(body)
			return nil
		})
		if n > len(b) {
			t.Fatalf("%d bytes out of %d", n, len(b))
		}
		_, _ = ParseCommandAHS(b)
	})
}

// The target's login machine, fed with any sequence of requests: b is cut into
// requests by a length byte, a flags byte, and text. Whatever comes, each request
// has one answer, the machine ends, and nobody gets in without the secret.
func FuzzLoginTarget(f *testing.F) {
	add := func(reqs ...string) {
		var b []byte
		for _, r := range reqs {
			b = append(append(b, byte(len(r)-1)), r...)
		}
		f.Add(b)
	}
	add("\x87InitiatorName=i\x00TargetName=t\x00", "\x87MaxBurstLength=512\x00")
	add("\x00InitiatorName=i\x00TargetName=t\x00AuthMethod=CHAP\x00", "\x00CHAP_A=5\x00", "\x81CHAP_N=u\x00CHAP_R=0x00\x00")
	add("\x40Initiat", "\x04orName=i\x00SessionType=Discovery\x00", "\x83")
	f.Fuzz(func(t *testing.T, b []byte) {
		lt := NewLoginTarget(LoginTargetConfig{
			Admit: func(*LoginIdentity) (*LoginGrant, error) {
				return &LoginGrant{Settings: DefaultSettings(), Auth: TargetAuth{Required: true, Lookup: func(u string) (Secret, bool) {
					return Secret("the secret of " + u), true
				}}}, nil
			},
			Bind: func(*LoginResult) (LoginBinding, error) {
				t.Error("logged in without the secret")
				return LoginBinding{}, nil
			},
			Rand: zeroReader{},
		})
		var cmd, resp PDU
		ended := false
		for len(b) > 1 && !ended {
			n := min(int(b[0]), len(b)-2)
			q := cmd.BHS.NewLoginRequest()
			q.BHS[1] = b[1]
			cmd.Data = b[2 : 2+n]
			b = b[2+n:]
			q.SetDataLen(n)
			done, err := lt.Handle(&cmd, &resp)
			r := resp.BHS.LoginResponse()
			if r.Opcode() != OpLoginResponse || r.DataLen() != len(resp.Data) || len(resp.Data) > DefaultMRDSL {
				t.Fatalf("answer % x with %d bytes", *r.BHS, len(resp.Data))
			}
			if (err != nil) != (r.Status() != LoginSuccess) || r.Transit() && r.Continue() {
				t.Fatalf("%v, answer % x", err, *r.BHS)
			}
			ended = done || err != nil
		}
	})
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// The initiator's login machine, fed with any sequence of responses.
func FuzzLoginInitiator(f *testing.F) {
	f.Add([]byte("\x87TargetPortalGroupTag=1\x00"), true)
	f.Add([]byte("\x00AuthMethod=CHAP\x00"), true)
	f.Add([]byte("\x87"), false)
	f.Fuzz(func(t *testing.T, b []byte, auth bool) {
		cfg := LoginInitiatorConfig{InitiatorName: "iqn.2026-11.a:i", TargetName: "t", Settings: DefaultSettings()}
		if auth {
			cfg.Auth = &InitiatorAuth{User: "u", Secret: Secret("a secret of ours"), MutualSecret: Secret("a secret of theirs")}
		}
		l := NewLoginInitiator(cfg)
		var req, resp PDU
		l.Start(&req)
		for sn := uint32(0); len(b) > 0; sn++ {
			n := min(len(b)-1, 200)
			r := resp.BHS.NewLoginResponse()
			r.BHS[1] = b[0]
			r.SetStatSN(sn)
			r.SetTSIH(1)
			resp.Data = b[1 : 1+n]
			b = b[1+n:]
			done, err := l.Next(&resp, &req)
			if done && auth {
				t.Fatal("a target without the secret was believed")
			}
			if done || err != nil {
				return
			}
			if req.BHS.Opcode() != OpLoginRequest || req.BHS.DataLen() != len(req.Data) || bytes.Contains(req.Data, []byte("a secret")) {
				t.Fatalf("request % x %q", req.BHS, req.Data)
			}
		}
	})
}
