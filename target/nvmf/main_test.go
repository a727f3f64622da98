package nvmf_test

import (
	"testing"

	"softiser/blockdev"
	"softiser/internal/leaktest"
	"softiser/internal/nvmetcp"
)

func TestMain(m *testing.M) {
	leaktest.Main(m, leaktest.Pool("in-capsule buffers", nvmetcp.BuffersOut), leaktest.Pool("bytes of staging memory", blockdev.DefaultPool().Out))
}
