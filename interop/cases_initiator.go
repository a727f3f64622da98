package main

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// iser-initiator against LIO, over siw and TCP.
var initiatorCases = concat(lioCases("iser"), lioCases("iscsi"), []Case{
	{Name: "lio-iser/gathered", Expect: "READ data that siw gathers from several pages per RDMA Write", Fresh: true, Run: gathered},
})

const lioIQN = "iqn.2026-11.softiser:lio"

// lioCases are our initiator against LIO, over iSER or TCP.
func lioCases(scheme string) []Case {
	portal := map[string]string{"iser": "iser", "iscsi": ""}[scheme]
	lio := func(name, expect string, short bool, setup string, run func(e *Env, url string) (string, error)) Case {
		return Case{Name: "lio-" + scheme + "/" + name, Expect: expect, Short: short, Fresh: true, Run: func(_ context.Context, e *Env) (string, error) {
			if _, err := e.In("%s", "siw_up || die siw\n"+setup+"\nlio_target "+lioIQN+" && lio_lun 0 $lio_path && lio_portal $SELF 3260 "+portal+" || die lio\n"+lioAuth(setup)+"echo 1 > $tpg/enable"); err != nil {
				return "", err
			}
			seen, err := run(e, fmt.Sprintf("%s://127.0.0.1:%d/%s/0", scheme, e.Port(3260), lioIQN))
			if err != nil {
				return "", err
			}
			_, err = e.In("quiet_kernel")
			return seen, err
		}}
	}
	const ram = "lio_ram ram0 64"
	bench := func(e *Env, url string, more ...string) (string, error) {
		return e.Host("iser-initiator", append([]string{"bench", url, "--rw=randwrite", "--bsrange=512-256k", "--iodepth=32", fmt.Sprintf("--size=%dm", e.MiB(16, 4)), "--verify=crc32c"}, more...)...)
	}
	return []Case{
		lio("discover", "SendTargets lists the target", false, ram, func(e *Env, url string) (string, error) {
			out, err := e.Host("iser-initiator", "discover", fmt.Sprintf("%s://127.0.0.1:%d", scheme, e.Port(3260)))
			if err == nil && !strings.Contains(out, lioIQN) {
				err = fmt.Errorf("not listed:\n%s", out)
			}
			return "listed", err
		}),
		lio("verify", "random writes at depth 32 read back the same", scheme == "iser", ram, func(e *Env, url string) (string, error) {
			if _, err := e.Host("iser-initiator", "info", url); err != nil {
				return "", err
			}
			_, err := bench(e, url)
			return "verified", err
		}),
		lio("fileio", "a file-backed LUN, copied out and compared", false, "lio_file f0 /tmp/f0.img 67108864", func(e *Env, url string) (string, error) { return copyBack(e, url) }),
		lio("chap-mutual", "both ends prove themselves; a wrong secret is refused", false, ram+"\n#chap", func(e *Env, url string) (string, error) {
			open := strings.Replace(url, "://", "://alice%correct-horse-battery@", 1) + "?target_user=target&target_password=staple-horse-battery"
			if _, err := e.Host("iser-initiator", "info", strings.Replace(open, "correct", "erroneous", 1)); err == nil {
				return "", fmt.Errorf("let in with a wrong secret")
			}
			_, err := e.Host("iser-initiator", "info", open)
			return "proved", err
		}),
		lio("unmap-write-same", "UNMAP and WRITE SAME are used; zeroed ranges read as zeroes", false,
			"lio_file f0 /tmp/f0.img 67108864; echo 1 > $lio_path/attrib/emulate_tpu; echo 1 > $lio_path/attrib/emulate_tpws", trimAndZero),
		lio("persist", "registered, reserved, refused, preempted and released in turns with Linux's initiator on the same LUN", false, ram, func(e *Env, url string) (string, error) {
			return persistInTurns(e, scheme, url)
		}),
		lio("abort", "a WRITE that hangs at LIO is aborted; LIO says so, and the session goes on", false, lioSlow, abortAtLIO),
		lio("login-lost", "the connection dies under I/O, the next two within the login; the run ends without an error", false, ram, loginLost),
		lio("disabled", "LIO's portal group off and on again under I/O: the run ends without an error", false, ram, func(e *Env, url string) (string, error) {
			return disabledAtLIO(e, scheme, url)
		}),
	}
}

// lioAuth adds CHAP where the setup asks for it.
func lioAuth(setup string) string {
	if strings.Contains(setup, "#chap") {
		return "lio_chap alice correct-horse-battery target staple-horse-battery\n"
	}
	return ""
}

func copyBack(e *Env, url string) (string, error) {
	in, out := filepath.Join(e.dir, "in"), filepath.Join(e.dir, "out")
	want := []byte(strings.Repeat("0123456789abcdef", 1<<20))
	if err := os.WriteFile(in, want, 0o644); err != nil {
		return "", err
	}
	// LIO gives a command 3 s for its data. Through the guest's network, 16 MiB at once take
	// longer when the machine does anything else; over iSER it then takes no login any more.
	if _, err := e.Host("iser-initiator", "write", url, "--depth", "4", "--chunk", "256KiB", in); err != nil {
		return "", err
	}
	if _, err := e.Host("iser-initiator", "read", url, "--length", "16MiB", out); err != nil {
		return "", err
	}
	got, err := os.ReadFile(out)
	if err != nil {
		return "", err
	}
	if md5Of(got) != md5Of(want) {
		return "", fmt.Errorf("%d bytes came back different", len(got))
	}
	return "16 MiB the same", nil
}

// trimAndZero fills a volume, trims it, and writes a file of zeroes sparsely over
// data: as WRITE SAME, not as payload.
func trimAndZero(e *Env, url string) (string, error) {
	if _, err := copyBack(e, url); err != nil {
		return "", err
	}
	if _, err := e.Host("iser-initiator", "bench", url, "--rw=trim", "--bs=64k", "--size=4m"); err != nil {
		return "", err
	}
	zeroes := filepath.Join(e.dir, "zeroes")
	if err := os.WriteFile(zeroes, make([]byte, 8<<20), 0o644); err != nil {
		return "", err
	}
	if _, err := e.Host("iser-initiator", "write", url, "--offset", "8MiB", "--sparse", zeroes); err != nil {
		return "", err
	}
	if _, err := e.Host("iser-initiator", "verify", url, "--offset", "8MiB", "--length", "8MiB", zeroes); err != nil {
		return "", err
	}
	return "trimmed, zeroed", nil
}

func md5Of(b []byte) string {
	sum := md5.Sum(b)
	return hex.EncodeToString(sum[:])
}

// files writes files into the case's folder.
func (e *Env) files(texts map[string]string) error {
	for name, text := range texts {
		if err := os.WriteFile(filepath.Join(e.dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	return nil
}
