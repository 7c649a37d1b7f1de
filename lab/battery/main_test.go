package battery

import (
	"os"
	"testing"

	"github.com/detour-collective/dcol/lab/testbed"
)

func TestMain(m *testing.M) {
	testbed.Stage() // the hosts of a network are this binary under another name
	os.Exit(m.Run())
}
