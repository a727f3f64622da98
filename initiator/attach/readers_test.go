package attach

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"softiser/initiator/internal/e2e"
	"softiser/internal/await"
)

// An attachment outlives who reads what its process says.
func TestNobodyReadsMessages(t *testing.T) {
	bin, dir := e2e.Binary(t, "iser-initiator"), t.TempDir()
	target := e2e.StartTarget(t, "1MiB")
	url := target.URL("iser")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	defer w.Close()
	cmd := exec.Command(bin, "attach", "--json", "--device=none", "--run-dir", dir, url)
	cmd.Stderr = w
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Process.Kill()
	var rec Record
	if err := json.NewDecoder(out).Decode(&rec); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	state := func() string {
		out, err := exec.Command(bin, "attach", "--list", "--json", "--run-dir", dir).Output()
		var list []struct{ State string }
		if err != nil || json.Unmarshal(out, &list) != nil || len(list) == 0 {
			return ""
		}
		return list[0].State
	}
	up := state()
	target.Kill() // which is told
	await.True(t, "the loss is noticed", func() bool { return len(ended) > 0 || state() != up })
	if len(ended) > 0 {
		t.Fatal(<-ended)
	}
	target.Start()
	await.True(t, "the target is back", func() bool { return len(ended) > 0 || state() == up }) // told, too
	if out, err := exec.Command(bin, "attach", "--detach", "--run-dir", dir, url).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
