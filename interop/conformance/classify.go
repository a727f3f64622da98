package main

import (
	"regexp"
	"strconv"
	"strings"
)

// outcome of one test.
type outcome int

const (
	passed outcome = iota
	failedTest
	skipped
	suiteError // the suite contradicts itself: no device can pass
)

// result is a classified test.
type result struct {
	test   string
	out    outcome
	reason string // of a failure or skip; of a pass: the step left out
}

var (
	// "             asserts    512    512    512      0      n/a"
	assertsLine = regexp.MustCompile(`(?m)^\s+asserts\s+(\d+)\s+(\d+)\s+(\d+)\s+(\d+)`)
	failureLine = regexp.MustCompile(`(?m)^\s+\d+\. (\S+\.c:\d+\s+- .*?)(?:\s+Send PRIN.*)?$`)
	failedText  = regexp.MustCompile(`(?m)^\s*\[FAIL(?:ED|URE)\]\s*(.*)$`)
	skippedText = regexp.MustCompile(`(?m)\[SKIPPED\]\s*(.*)$`)
)

// classify reads what a run of one test has printed. The program's own summary
// counts a skip as a pass, and its exit status says nothing.
func classify(test, text string, timedOut bool) result {
	r := result{test: test}
	m := assertsLine.FindStringSubmatch(text)
	switch {
	case timedOut:
		r.out, r.reason = failedTest, "did not end within the time limit"
		for _, e := range suiteErrors {
			if e.test == test && e.hangs && e.text.MatchString(lastLine(text)) {
				r.out, r.reason = suiteError, e.why
			}
		}
	case m == nil:
		r.out, r.reason = failedTest, "ended without a summary: "+lastLine(text)
	case m[4] != "0":
		r.out = failedTest
		r.reason = firstOf(text, failureLine, failedText)
		for _, e := range suiteErrors {
			if e.test == test && m[4] == strconv.Itoa(e.asserts) && e.text.MatchString(r.reason) {
				r.out, r.reason = suiteError, e.why
			}
		}
	default:
		s := skippedText.FindStringSubmatch(text)
		if s == nil {
			if n, _ := strconv.Atoi(m[2]); n == 0 && strings.Contains(text, "Skipping") {
				r.out, r.reason = skipped, "skipped without saying why"
			}
			break
		}
		r.reason = strings.TrimSpace(s[1])
		for _, e := range expected {
			if e.text.MatchString(s[1]) {
				r.reason += " (" + e.why + ")"
				break
			}
		}
		if !partial[test] {
			r.out = skipped
		}
	}
	return r
}

func firstOf(text string, res ...*regexp.Regexp) string {
	for _, re := range res {
		if m := re.FindStringSubmatch(text); m != nil {
			return strings.TrimSpace(m[1])
		}
	}
	return "an assertion failed"
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
