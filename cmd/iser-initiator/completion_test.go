package main

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"

	"softiser/initiator/attach"
	"softiser/initiator/blockio"
	"softiser/internal/await"
	"softiser/internal/helptest"
	callerr "softiser/internal/usage"
)

// Every flag and argument completes to something that somebody has thought of.
func TestEverythingCompletes(t *testing.T) {
	cmd := root()
	callerr.Tree(cmd)
	complete(cmd)
	helptest.Completion(t, cmd, completed)
}

// offers are what the shell is told for a command line whose last word is being typed.
func offers(t *testing.T, words ...string) (offered []string, directive string) {
	t.Helper()
	var out, errs bytes.Buffer
	if code := execute(t.Context(), append([]string{"__completeNoDesc"}, words...), &out, &errs); code != 0 {
		t.Fatalf("%q: exit %d, %s", words, code, &errs)
	}
	for line := range strings.Lines(out.String()) {
		if d, ok := strings.CutPrefix(line, ":"); ok {
			return offered, strings.TrimSpace(d)
		}
		offered = append(offered, strings.TrimSpace(line))
	}
	t.Fatalf("%q: %s", words, &out)
	return nil, ""
}

func TestCompletion(t *testing.T) {
	const urls = "iser:// iser+roce:// iscsi:// nvme+tcp:// nvme+rdma:// nvme+roce://"
	for _, c := range []struct{ words, want, directive string }{ // 0: files, 2: no space, 4: no files, 8: files with these endings, 16: folders
		{"info |", urls, "6"},
		{"info nvme|", "nvme+tcp:// nvme+rdma:// nvme+roce://", "6"},
		{"info iser://x/y/0 |", "", "4"},
		{"discover i|", "iser:// iser+roce:// iscsi://", "6"},
		{"read iser://x/y/0 |", "", "0"},
		{"write iser://x/y/0 file |", "", "4"},
		{"reserve report |", urls, "6"},
		{"reserve acquire iser://x/y/0 --type |", strings.Join(blockio.ReservationTypes(), " "), "4"},
		{"reserve acquire iser://x/y/0 --key |", "", "4"},
		{"bench |", urls, "2"},
		{"bench iser://x/y/0 |", "", "0"},
		{"bench iser://x/y/0 --rw=rand|", "randread randwrite randrw randtrim", "4"},
		{"bench iser://x/y/0 --rate-process |", "linear poisson", "4"},
		{"bench iser://x/y/0 --bs |", "", "4"},
		{"bench iser://x/y/0 --verify-state |", "", "0"},
		{"bench iser://x/y/0 --output-format json,|", "json,normal json,json+ json,terse", "4"},
		{"attach |", urls, "6"},
		{"attach --device u|", "ublk", "4"},
		{"attach --chap-algs sha-256,s|", "sha-256,sha3-256 sha-256,sha1", "4"},
		{"attach --run-dir |", "", "16"},
		{"attach --detach |", "", "4"},
		{"info --tls-ca |", "", "0"},
		{"rdma rping |", "", "4"},
		{"rdma write-bw --provider |", "iwarp roce", "4"},
		{"rdma write-bw --busy-poll |", "", "4"},
		{"doctor --bundle |", "", "0"},
	} {
		words := strings.Fields(strings.NewReplacer(" |", " \x00", "|", "").Replace(c.words))
		for i, w := range words {
			words[i] = strings.TrimPrefix(w, "\x00")
		}
		t.Setenv("ISER_RUN_DIR", t.TempDir())
		got, directive := offers(t, words...)
		if strings.Join(got, " ") != c.want || directive != c.directive {
			t.Errorf("%s: %q :%s, want %q :%s", c.words, got, directive, c.want, c.directive)
		}
	}
}

// --detach and --upgrade are offered what is attached, under every name that they take.
func TestAttachmentsComplete(t *testing.T) {
	dir := t.TempDir()
	addr, _ := serve(t, 1<<20, "")
	url := "iser://" + addr + "/" + testIQN + "/0"
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan int)
	go func() {
		var out, errs bytes.Buffer
		ended <- execute(ctx, []string{"attach", url, "--device", "none", "--run-dir", dir}, &out, &errs)
	}()
	var all []*attach.Record
	await.True(t, "it is attached", func() bool {
		all, _ = attach.List(dir)
		return len(all) == 1 && all[0].Socket != ""
	})
	for _, flag := range []string{"--detach", "--upgrade"} {
		if got, _ := offers(t, "attach", "--run-dir", dir, flag, ""); !slices.Equal(got, []string{all[0].Socket, all[0].URL}) {
			t.Errorf("%s: %q, want those of %+v", flag, got, all[0])
		}
	}
	stop()
	<-ended
	if got, _ := offers(t, "attach", "--run-dir", dir, "--detach", ""); len(got) != 0 {
		t.Errorf("afterwards: %q", got)
	}
}
