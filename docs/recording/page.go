package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/detour-collective/dcol/lab/browser"
)

// downloads run while pictures of the page are taken. The first is alone and takes almost half a minute, which is enough
// for the agent to know the time saved. Of several downloads at once from two addresses it may know only bounds.
const downloads = `{ dcol run -- curl -qs -o /dev/null "http://10.0.2.2/noise-10000000?[1-6]"
for from in 10.0.2.2 10.0.2.2 '[fd00::2:2]'; do
while dcol run -- curl -qsg -o /dev/null "http://$from/noise-10000000"; do :; done &
done; } 2>/dev/null &`

// page has pictures of the page of dcol web taken, which is served on the host of a process.
func (s studio) page(host, dcol, out string) error {
	if err := s.enter(downloads); err != nil {
		return err
	}
	address, err := exec.CommandContext(s.ctx, "nsenter", "-t", host, "-n", "-m", dcol, "web").Output()
	if err != nil {
		return fmt.Errorf("dcol web: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	// The browser shares that host's network, but not its files, because it needs the machine's fonts.
	cmd := exec.CommandContext(s.ctx, "nsenter", "-t", host, "-n", self, "page", strings.TrimSpace(string(address)), out)
	cmd.Stderr = os.Stderr
	return cmd.Run()
}

// A picture shows the beginning of the page, as far as the connections, so that its letters can be read where it is smaller.
const (
	pageWidth, pageHeight = 1000, 800
	end                   = `Math.ceil(document.querySelector('#connection-rows').closest('section').getBoundingClientRect().bottom + scrollY) + 16`
)

// shoot writes pictures of the page at an address, in light and dark colours.
func shoot(ctx context.Context, address, out string) error {
	b, err := browser.Start(ctx)
	if err != nil {
		return err
	}
	defer b.Close()
	if err := errors.Join(b.Look(pageWidth, pageHeight, "light"), b.Open(address)); err != nil {
		return err
	}
	// The chart has something in it, every download carries over both paths, and the time that the first one saved is known.
	const worthIt = `document.querySelector('#chart polyline')?.points.length >= 40 &&
		document.querySelectorAll('#connection-rows tr').length === 3 &&
		[...document.querySelectorAll('#connection-rows td:nth-child(3)')].every((traffic) => traffic.textContent === 'bulk') &&
		!/\b0 bit/.test(document.querySelector('#connection-rows').textContent) &&
		parseInt(document.querySelector('#gained > div:last-child dd').textContent) >= 20`
	for _, scheme := range []string{"light", "dark"} {
		var height int
		if err := errors.Join(b.Look(pageWidth, pageHeight, scheme), b.Wait(worthIt, 5*time.Minute), b.Eval(end, &height)); err != nil {
			return err
		}
		if err := b.Look(pageWidth, height, scheme); err != nil {
			return err
		}
		picture, err := b.Screenshot(false)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(out, "page-"+scheme+".png"), picture, 0o644); err != nil {
			return err
		}
	}
	return nil
}
