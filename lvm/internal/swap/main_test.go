package swap

import (
	"os"
	"testing"

	"softiser/lvm/internal/lvmtest"
)

func TestMain(m *testing.M) { os.Exit(lvmtest.Main(m)) }
