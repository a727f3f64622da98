package lvmtest

import (
	"testing"

	"softiser/blockdev"
	"softiser/internal/leaktest"
)

// Main is a package's TestMain: it fails when the tests leave goroutines, file
// descriptors or staging memory behind.
func Main(m *testing.M) {
	leaktest.Main(m, leaktest.Pool("bytes of staging memory", blockdev.DefaultPool().Out))
}
