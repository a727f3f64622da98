package nvmetcp_test

import (
	"testing"

	"softiser/internal/leaktest"
	"softiser/internal/nvmetcp"
)

func TestMain(m *testing.M) { leaktest.Main(m, leaktest.Pool("in-capsule data", nvmetcp.BuffersOut)) }
