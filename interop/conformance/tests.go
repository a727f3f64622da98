package main

import (
	"regexp"
	"strings"
)

// LUNs of the target under test.
const (
	lunMain      = 0
	lunRemovable = 1
	lunReadOnly  = 2
	lunSlow      = 3
	lunCHAP      = 4 // LUN 0 of a target that wants CHAP
)

// lunFor returns the LUN on which a test can do what it is for.
func lunFor(test string) int {
	family, _, _ := strings.Cut(test, ".")
	switch {
	case family == "PreventAllow" || family == "StartStopUnit" || family == "NoMedia":
		return lunRemovable
	case family == "iSCSICHAP":
		return lunCHAP
	case family == "ReadOnly":
		return lunReadOnly
	case family == "iSCSITMF" || test == "Sanitize.Reset":
		// They abort or watch a command that is still under way; on a fast
		// volume it has ended before.
		return lunSlow
	}
	return lunMain
}

// hangText is what a test prints last that is known never to end; nil: it ends.
func hangText(test string) *regexp.Regexp {
	for _, e := range suiteErrors {
		if e.test == test && e.hangs {
			return e.text
		}
	}
	return nil
}

// slow lists what the short form leaves out: tests that sleep.
var slow = map[string]bool{
	"Sanitize.Reset": true, "iSCSIcmdsn.iSCSICmdSnTooHigh": true, "iSCSIcmdsn.iSCSICmdSnTooLow": true,
}

// expected are the skips that no backend can avoid, with the reason.
var expected = []struct {
	text *regexp.Regexp
	why  string
}{
	{regexp.MustCompile(`CRYPTO_ERASE is not implemented`), "the volumes are not encrypted, so there is no key to erase"},
	{regexp.MustCompile(`No alignment restrictions`), "the rest of the test has run; atomic writes may start at any block"},
	{regexp.MustCompile(`does not support 0-blocks`), "WSNZ is set; the test has seen 0 blocks refused"},
	{regexp.MustCompile(`Target is SPC-4\+. Skipping NUL bit`), "the rest of the test has run; SPC-4 has no NUL bit"},
	{regexp.MustCompile(`LBPPB < 2`), "wants several logical blocks in a physical one; see file-512e"},
	{regexp.MustCompile(`LUN too small`), "the volume under test is smaller than the address the test wants"},
}

// partial are tests that print [SKIPPED] for one step and check the others.
var partial = map[string]bool{
	"WriteAtomic16.VPD": true, "Sanitize.Readonly": true, "Sanitize.Reservations": true,
	"WriteSame10.ZeroBlocks": true, "WriteSame16.ZeroBlocks": true, "ExtendedCopy.ValidTgtDescr": true,
}

// suiteErrors are assertions of the suite that no device can satisfy, or none that
// keeps to the standard. They count only when the first failed assertion is the
// one named here and as many have failed as follow from it.
var suiteErrors = []struct {
	test    string
	text    *regexp.Regexp
	asserts int  // that fail
	hangs   bool // the test never ends; text matches its last line
	why     string
}{
	{"iSCSITMF.LUNResetSimpleAsync", regexp.MustCompile(`reconnect_succeeded,1`), 1, false,
		"1.19 asserts what its callback sets before the callback can have run (mended in 1.20)"},
	{"GetLBAStatus.UnmapSingle", regexp.MustCompile(`lba offset in first descriptor`), 1, false,
		"asks for LBA n+1 and wants the answer to begin at n+lbppb; right only where lbppb is 1"},
	{"CompareAndWrite.InvalidDataOutSize", regexp.MustCompile(`test_compareandwrite_invalid_dataout_size\.c:63 `), 2, false,
		"1.20 means to change the number of blocks in the CDB, but its condition excepts just the SCSI commands: " +
			"the command arrives as it should be, 4 blocks of Data-Out for 2 blocks, and a difference in the blocks is a miscompare"},
	{"iSCSISendTargets.Simple", regexp.MustCompile(`test_iscsi_sendtargets\.c:71 `), 3, false,
		"sends SendTargets=All in a normal session, which RFC 7143 Appendix C forbids to support there"},
	{"iSCSISendTargets.Invalid", regexp.MustCompile(`queued Text request 2 `), 0, true,
		"wants a Reject for an unknown key, where RFC 7143 §6.2 demands the answer NotUnderstood; libiscsi ends the connection over it and the test waits for ever"},
}
