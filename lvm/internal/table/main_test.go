package table

import (
	"testing"

	"softiser/lvm/internal/lvmtest"
)

func TestMain(m *testing.M) { lvmtest.Main(m) }
