// Command recording makes the recording of the README from a real run, in a network of namespaces (root):
//
//	go run ./docs/recording FOLDER
//
// It needs bin/dcol and bin/dcol-lab, tmux, curl, nginx and chromium. The folder gets terminal.svg, page-light.png and
// page-dark.png.
package main

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

//go:embed network.toml
var network []byte

func main() {
	err := errors.New("use it as: go run ./docs/recording FOLDER")
	switch ctx := context.Background(); {
	case len(os.Args) == 2:
		err = record(ctx, os.Args[1])
	case len(os.Args) == 4 && os.Args[1] == "page": // this program's own call, in the network of alice's host
		err = shoot(ctx, os.Args[2], os.Args[3])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

var screens = []screen{{"alice's terminal", 96, 6}, {"another terminal of alice's", 96, 16}}

const words = "Two terminals. In the first, curl downloads a file with plain TCP, then again as dcol run curl, in less than half of the time. " +
	"In the second, dcol top shows the connection with a direct subflow and one through bob, and the rate of each."

// studio is a lab network with two terminals on alice's host.
type studio struct {
	ctx    context.Context
	folder string // for what is not kept
}

func (s studio) tmux(argv ...string) (string, error) {
	var failure bytes.Buffer
	cmd := exec.CommandContext(s.ctx, "tmux", append([]string{"-S", filepath.Join(s.folder, "tmux"), "-f", "/dev/null"}, argv...)...)
	cmd.Stderr = &failure
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("tmux %s: %w: %s", strings.Join(argv, " "), err, failure.String())
	}
	return string(out), nil
}

// open opens a terminal.
func (s studio) open(name string, size screen, command string) error {
	_, err := s.tmux("new-session", "-d", "-s", name, "-x", fmt.Sprint(size.columns), "-y", fmt.Sprint(size.rows), command, ";",
		"set-option", "-g", "status", "off")
	return err
}

// shows returns the lines of a terminal; with colours, tmux's sequences are among them.
func (s studio) shows(name string, size screen) ([]string, error) {
	out, err := s.tmux("capture-pane", "-p", "-e", "-t", name)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimRight(out, "\n"), "\n")
	for len(lines) < size.rows {
		lines = append(lines, "")
	}
	return lines[:size.rows], nil
}

// wait waits until a terminal shows a text.
func (s studio) wait(name, text string) error {
	const limit = 3 * time.Minute
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		out, err := s.tmux("capture-pane", "-p", "-t", name)
		if err != nil {
			return err
		}
		if strings.Contains(out, text) {
			return nil
		}
	}
	return fmt.Errorf("the terminal did not show %q within %v", text, limit)
}

// enter types a line in the first terminal, at once.
func (s studio) enter(line string) error {
	_, err := s.tmux("send-keys", "-t", "first", "-l", "--", line)
	if err == nil {
		_, err = s.tmux("send-keys", "-t", "first", "Enter")
	}
	return err
}

// shell returns the process of the first terminal's shell on alice's host: its folder is the studio's.
func (s studio) shell() (pid string, err error) {
	for range 600 {
		folders, err := filepath.Glob("/proc/[0-9]*/cwd")
		if err != nil {
			return "", err
		}
		for _, link := range folders {
			if to, err := os.Readlink(link); err == nil && to == s.folder {
				return filepath.Base(filepath.Dir(link)), nil
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	return "", errors.New("the shell on alice's host does not run")
}

// record makes the recording.
func record(ctx context.Context, out string) (err error) {
	temp, err := os.MkdirTemp("", "dcol-recording-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	file := filepath.Join(temp, "network.toml")
	if err := os.WriteFile(file, network, 0o600); err != nil {
		return err
	}
	s := studio{ctx, temp}
	defer func() {
		_ = s.enter("exit") // leaves alice
		_ = s.enter("exit") // ends the lab, and its network
		for range 100 {
			if _, gone := s.tmux("has-session", "-t", "first"); gone != nil {
				break
			}
			time.Sleep(100 * time.Millisecond)
		}
		_, _ = s.tmux("kill-server")
	}()
	if err := s.open("first", screens[0], "bin/dcol-lab shell "+file+" --out "+filepath.Join(temp, "lab")); err != nil {
		return err
	}
	if err := s.wait("first", "recording>"); err != nil {
		return err
	}
	// The lab offers every kind of detour. These are the defaults.
	if err := errors.Join(s.enter("kinds alice in-band,mapped"), s.enter("alice"), s.wait("first", "alice:")); err != nil {
		return err
	}
	// So that curl prints nothing but how long it took, and connects as most do, by IPv4.
	const quiet = "ipv4\nsilent\noutput = /dev/null\nwrite-out = \"%{size_download} bytes in %{time_total} s\\n\"\n"
	if err := os.WriteFile(filepath.Join(temp, ".curlrc"), []byte(quiet), 0o600); err != nil {
		return err
	}
	const prompt = `PS1='alice$ '; cd %s; export CURL_HOME=$PWD; clear`
	if err := s.enter(fmt.Sprintf(prompt, temp)); err != nil {
		return err
	}
	host, err := s.shell()
	if err != nil {
		return err
	}
	inside := []string{"nsenter", "-t", host, "-n", "-m"}
	bin, err := filepath.Abs("bin")
	if err != nil {
		return err
	}
	if err := s.open("second", screens[1], strings.Join(inside, " ")+" "+bin+"/dcol top"); err != nil {
		return err
	}
	if err := s.wait("second", "bob"); err != nil {
		return err
	}
	frames, err := s.film()
	if err != nil {
		return err
	}
	// The last of the frames that show both paths.
	still := 0
	for i, f := range frames {
		if strings.Contains(strings.Join(f.lines, "\n"), "via bob") {
			still = i
		}
	}
	if still == 0 {
		return errors.New("dcol top never showed the path through bob")
	}
	if err := os.WriteFile(filepath.Join(out, "terminal.svg"), []byte(compose(screens, frames, still, words)), 0o644); err != nil {
		return err
	}
	return s.page(host, bin+"/dcol", out)
}
