package attach

import (
	"os"
	"testing"

	"softiser/initiator/internal/e2e"
)

func TestMain(m *testing.M) {
	code := m.Run()
	e2e.Clean()
	os.Exit(code)
}
