package main

import (
	"strings"
	"testing"
)

func TestClassify(t *testing.T) {
	sum := func(failed string) string {
		return "\nRun Summary:    Type  Total    Ran Passed Failed Inactive\n             asserts    512    512    511      " + failed + "      n/a\n"
	}
	for _, c := range []struct {
		name, test, text string
		timedOut         bool
		out              outcome
		reason           string // part of it
	}{
		{"pass", "Read10.Simple", "passed" + sum("0"), false, passed, ""},
		{"skip counted as pass", "PreventAllow.Simple", "    [SKIPPED] Logical unit is not removable. Skipping test.\npassed" + sum("0"), false, skipped, "not removable"},
		{"step left out", "WriteAtomic16.VPD", "    [SKIPPED] No alignment restrictions on this LUN\npassed" + sum("0"), false, passed, "any block"},
		{"failure", "Unmap.VPD", "Suite Unmap, Test VPD had failures:\n    1. test_unmap_vpd.c:62  - CU_ASSERT_EQUAL(_r,0)    Send PRIN/READ_KEYS\n" + sum("1"), false, failedTest, "test_unmap_vpd.c:62"},
		{"crash", "Read10.Simple", "    Send READ10\nmalloc(): corrupted", false, failedTest, "malloc(): corrupted"},
		{"hang", "Read10.Simple", "    Send READ10", true, failedTest, "time limit"},
		{"suite error", "iSCSITMF.LUNResetSimpleAsync", "    1. test_async_lu_reset_simple.c:157  - CU_ASSERT_EQUAL(reconnect_succeeded,1)" + sum("1"), false, suiteError, "callback"},
		{"suite hangs", "iSCSISendTargets.Invalid", "    non-zero Text response 1\n    queued Text request 2 with SendTargets=Alle\n", true, suiteError, "NotUnderstood"},
		{"hangs elsewhere", "iSCSISendTargets.Invalid", "    queued Text request 1 with SendTargetsPlease=All\n", true, failedTest, "time limit"},
		{"several assertions", "iSCSISendTargets.Simple", "    1. test_iscsi_sendtargets.c:71  - CU_ASSERT_EQUAL(status,0)" + sum("3"), false, suiteError, "Appendix C"},
		{"suite error and more", "iSCSITMF.LUNResetSimpleAsync", "    1. test_async_lu_reset_simple.c:157  - CU_ASSERT_EQUAL(reconnect_succeeded,1)" + sum("2"), false, failedTest, "reconnect"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := classify(c.test, c.text, c.timedOut)
			if r.out != c.out || !strings.Contains(r.reason, c.reason) {
				t.Errorf("got %v, %q; want %v, %q", r.out, r.reason, c.out, c.reason)
			}
		})
	}
}

// TestPrinted: a test that never ends is told by its last line, in whatever pieces that comes.
func TestPrinted(t *testing.T) {
	told := 0
	p := &printed{hang: hangText("iSCSISendTargets.Invalid"), hung: func() { told++ }}
	for i, piece := range []string{"    queued Text request 1 with x\n    queued Te", "xt request 2 with SendTargets=Alle\n", "and more\n"} {
		if n, err := p.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Fatal(n, err)
		}
		if want := min(i, 1); told != want {
			t.Errorf("told %d times after %q", told, piece)
		}
	}
	if hangText("Read10.Simple") != nil {
		t.Error("a test that ends has a last line")
	}
}
