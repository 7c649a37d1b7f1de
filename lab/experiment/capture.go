package experiment

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/detour-collective/dcol/lab/crew"
)

// CaptureFile is the name of a run's capture, in the folder of its logs.
const CaptureFile = "capture.pcap"

// captureLimit bounds the time that tcpdump may take to start. pcapHeader is the size in bytes of the header that
// tcpdump writes when it has started.
const (
	captureLimit = 20 * time.Second
	pcapHeader   = 24
)

// capture begins to write the TCP packets of the host of the client's agent, if Options.Capture is set.
func (l *Lab) capture(ctx context.Context, c crew.Crew) (stop func() error, err error) {
	if l.opts.Capture == 0 {
		return func() error { return nil }, nil
	}
	file := filepath.Join(c.Logs, CaptureFile)
	// Without --immediate-mode, the packets of its last second would be missing. 32 MiB is the size of the ring of packets.
	p, err := c.Start(ctx, l.Scenario.ClientAgent(), "tcpdump", "tcpdump", "-i", "any", "-n", "--immediate-mode", "-B", "32768",
		"-s", fmt.Sprint(l.opts.Capture), "-Z", "root", "-U", "-w", file, "tcp")
	if err != nil {
		return nil, err
	}
	err = crew.Await(ctx, captureLimit, 20*time.Millisecond, func() error {
		info, err := os.Stat(file)
		switch {
		case !p.Running():
			said, _ := p.Output()
			return crew.Hopeless(fmt.Errorf("tcpdump ended: %w: %s", p.Err(), said))
		case err != nil:
			return err
		case info.Size() < pcapHeader:
			return errors.New("tcpdump does not capture yet")
		}
		return nil
	})
	if err != nil {
		p.Stop()
		return nil, err
	}
	return func() error {
		p.Stop()
		return p.Err() // tcpdump exits with 0 after a signal
	}, nil
}
