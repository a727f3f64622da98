package nvmf

import (
	"strings"
	"testing"
)

// Who uses the library makes keys of their texts, and no error repeats them.
func TestParseKeys(t *testing.T) {
	const chap, tls = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:", "NVMeTLSkey-1:01:MDAxMTIyMzM0NDU1NjY3Nzg4OTlhYWJiY2NkZGVlZmZwJEiQ:"
	if k, err := ParseSecret(chap); err != nil || strings.Contains(k.String(), "ia6z") {
		t.Errorf("%v, %v", k, err)
	}
	if k, err := ParseTLSKey(tls); err != nil || strings.Contains(k.String(), "MDAx") {
		t.Errorf("%v, %v", k, err)
	}
	if _, err := ParseSecret(chap[:len(chap)-9]); err == nil || strings.Contains(err.Error(), "ia6z") {
		t.Errorf("a cut secret: %v", err)
	}
	if _, err := ParseTLSKey(tls[:len(tls)-9]); err == nil || strings.Contains(err.Error(), "MDAx") {
		t.Errorf("a cut key: %v", err)
	}
}
