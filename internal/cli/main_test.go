package cli

import (
	"errors"
	"testing"

	"github.com/spf13/cobra"
)

func TestExitCodes(t *testing.T) {
	broken := errors.New("broken")
	for _, test := range []struct {
		name string
		err  error
		want int
	}{
		{"no error", nil, 0},
		{"an error", broken, 1},
		{"a code of its own", Failure{broken, 127}, 127},
		{"a code without a word", ExitCode(3), 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			root := &cobra.Command{Use: "x", RunE: func(*cobra.Command, []string) error { return test.err }}
			root.SetArgs(nil)
			Prepare(root, "1")
			if got := Run(root, nil); got != test.want {
				t.Errorf("exit code %d, want %d", got, test.want)
			}
		})
	}
}
