package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/detour-collective/dcol/internal/config"
)

// Without an agent, the relay of an earlier one gets the choice. If it does not follow, the command fails and says what ends
// it. The configuration is changed in any case.
func TestConvertWithoutAgent(t *testing.T) {
	for name, test := range map[string]struct {
		answer string // of the relay; empty: there is none
		fails  bool
	}{
		"no relay":              {"", false},
		"a relay that follows":  {`{"status":{},"changed":true}`, false},
		"an older relay":        {`{"status":{}}`, true},
		"a relay that has died": {"nonsense", true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "dcol.toml")
			text := fmt.Sprintf(`name = "alice"
roles = ["client"]
run_dir = %q
[identity]
certificate = "a.crt"
key = "a.key"
ca = "ca.crt"
[client.converter]
use = "always"
`, dir)
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			asked := make(chan string, 1)
			if test.answer != "" {
				l, err := net.Listen("unix", filepath.Join(dir, "relay-control.sock"))
				if err != nil {
					t.Fatal(err)
				}
				defer l.Close()
				go func() {
					c, err := l.Accept()
					if err != nil {
						return
					}
					defer c.Close()
					line, _ := bufio.NewReader(c).ReadString('\n')
					asked <- line
					fmt.Fprintln(c, test.answer)
				}()
			}
			cmd := convertCommand()
			cmd.SetArgs([]string{"never", "-c", file, "--socket", filepath.Join(dir, "none.sock")})
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			err := cmd.ExecuteContext(t.Context())
			if (err != nil) != test.fails || err != nil && !strings.Contains(err.Error(), "dcol down") {
				t.Errorf("the command returns %v", err)
			}
			if c, err := config.Load(file); err != nil || c.Client.Converter.Use != config.ConvertNever {
				t.Fatalf("the configuration has not changed: %+v, %v", c, err)
			}
			if test.answer != "" {
				if line := <-asked; !strings.Contains(line, `"mode":0`) {
					t.Errorf("the relay is asked %q", line)
				}
			}
		})
	}
}
