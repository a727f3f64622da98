package bench

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"softiser/initiator/internal/e2e"
	"softiser/internal/await"
)

// runProgram starts the generator; its report ends up in the buffer.
func runProgram(t *testing.T, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	cmd := exec.Command(e2e.Binary(t, "iser-initiator"), append([]string{"bench", "--eta=never", "--output-format=json"}, args...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, &out
}

// acknowledged counts the blocks that a ledger file says were acknowledged,
// while its run goes on.
func acknowledged(path string) (n int) {
	b, _ := os.ReadFile(path)
	for at := ledgerHeader; at+ledgerEntryN <= len(b); at += ledgerEntryN {
		if binary.LittleEndian.Uint32(b[at+4:]) > 0 {
			n++
		}
	}
	return n
}

// Target and generator are both killed in the middle of a run. What was
// acknowledged is there afterwards; a block that is put back to an older state
// is found.
func TestCrashLosesNothingAcknowledged(t *testing.T) {
	target := e2e.StartTarget(t, "64MiB")
	state := filepath.Join(t.TempDir(), "ledger")
	for _, scheme := range []string{"iser", "iscsi"} {
		job := []string{target.URL(scheme), "--rw=randwrite", "--bs=4k", "--iodepth=16", "--size=16m", "--verify=crc32c", "--verify-state=" + state + "." + scheme}
		cmd, out := runProgram(t, append(job, "--time-based", "--runtime=600", "--fsync=64")...)
		ledger := state + "." + scheme
		if !await.Until(func() bool { return acknowledged(ledger) >= 500 }) {
			cmd.Process.Kill()
			cmd.Wait()
			t.Fatalf("%s: nothing is written: %s", scheme, out.String())
		}
		target.Kill()
		cmd.Process.Kill()
		cmd.Wait()
		target.Start()
		cmd, out = runProgram(t, append(job, "--verify-only")...)
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%s: %v\n%s", scheme, err, out.String())
		}
		var r struct {
			Jobs []struct {
				Verify struct{ Blocks, Bad uint64 }
			}
		}
		if err := json.Unmarshal(out.Bytes(), &r); err != nil {
			t.Fatal(err)
		}
		if v := r.Jobs[0].Verify; v.Blocks < 500 || v.Bad != 0 {
			t.Errorf("%s: %+v", scheme, v)
		}
		// Another run of the same job overwrites; the old ledger then finds
		// blocks of the future in place of its own.
		cmd, out = runProgram(t, target.URL(scheme), "--rw=write", "--bs=4k", "--size=64k", "--verify=crc32c", "--seed=7")
		if err := cmd.Wait(); err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		cmd, out = runProgram(t, append(job, "--verify-only")...)
		if err := cmd.Wait(); err == nil || !strings.Contains(out.String(), "a block of another run") {
			t.Errorf("%s: lost writes were not found: %v\n%s", scheme, err, out.String())
		}
	}
}

// Verified writes over both transports, every size, with and without CRC.
func TestVerifiedOverTheWire(t *testing.T) {
	target := e2e.StartTarget(t, "64MiB")
	for _, args := range [][]string{
		{target.URL("iser"), "--bs=4k", "--iodepth=32"},
		{target.URL("iser"), "--bsrange=4k-1m", "--iodepth=16", "--loops=2"},
		{target.URL("iser"), "--bs=64k", "--iodepth=8", "--fua", "--sessions=3"},
		{target.URL("iscsi"), "--bsrange=4k-1m", "--iodepth=16", "--loops=2"},
		{target.URL("iscsi"), "--bs=4k", "--iodepth=32", "--fsync=16", "--numjobs=4", "--size=4m", "--offset-increment=8m", "--group-reporting"},
	} {
		cmd, out := runProgram(t, append(args, "--rw=randwrite", "--verify=crc32c")...)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%q: %v\n%s", args, err, out.String())
		}
	}
}
