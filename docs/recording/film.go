package main

import (
	"errors"
	"slices"
	"strings"
	"time"
)

// between is the time between frames.
const between = 400 * time.Millisecond

// script is typed in the first terminal. Each line follows when the one before has ended.
var script = []string{
	"curl http://server/noise-10000000                # plain TCP",
	"dcol run -- curl http://server/noise-10000000    # the same, with dcol",
}

// film types the script at a human's speed, and takes frames meanwhile.
func (s studio) film() ([]frame, error) {
	begin := time.Now()
	var frames []frame
	take := func() error {
		first, err := s.shows("first", screens[0])
		if err != nil {
			return err
		}
		second, err := s.shows("second", screens[1])
		if err != nil {
			return err
		}
		lines := slices.Concat(first, second)
		if len(frames) == 0 || !slices.Equal(frames[len(frames)-1].lines, lines) {
			frames = append(frames, frame{time.Since(begin), lines})
		}
		return nil
	}
	pause := func(d time.Duration) (err error) {
		for end := time.Now().Add(d); time.Now().Before(end) && err == nil; time.Sleep(between) {
			err = take()
		}
		return err
	}
	if err := pause(time.Second); err != nil {
		return nil, err
	}
	for _, line := range script {
		for len(line) > 0 { // a few characters at a time
			n := min(6, len(line))
			if _, err := s.tmux("send-keys", "-t", "first", "-l", "--", line[:n]); err != nil {
				return nil, err
			}
			line = line[n:]
			if err := take(); err != nil {
				return nil, err
			}
			time.Sleep(60 * time.Millisecond)
		}
		if err := pause(600 * time.Millisecond); err != nil {
			return nil, err
		}
		if _, err := s.tmux("send-keys", "-t", "first", "Enter"); err != nil {
			return nil, err
		}
		if err := s.follow(take); err != nil {
			return nil, err
		}
	}
	return frames, pause(5 * time.Second)
}

// follow takes frames until the shell is ready for the next line.
func (s studio) follow(take func() error) error {
	const limit = 2 * time.Minute
	time.Sleep(between)
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(between) {
		if err := take(); err != nil {
			return err
		}
		ready, err := s.ready()
		if err != nil || ready {
			return err
		}
	}
	return errors.New("the command did not end")
}

// ready reports whether the last line of the first terminal is an empty prompt.
func (s studio) ready() (bool, error) {
	out, err := s.tmux("capture-pane", "-p", "-t", "first")
	if err != nil {
		return false, err
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return strings.TrimSpace(lines[len(lines)-1]) == "alice$", nil
}
