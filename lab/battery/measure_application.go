package battery

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/lab/crew"
	"github.com/detour-collective/dcol/lab/testbed"
)

// fileSize is that of the file that the application downloads: more than any run takes.
const fileSize = 1 << 30

// application downloads a file over TCP by HTTP. As soon as WiFi goes, it asks for the rest over the mobile network.
func (a *attempt) application(ctx context.Context) (v values, err error) {
	stop, err := a.serveFile(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	gone, forget, err := a.linkGone(clientUplink(1))
	if err != nil {
		return nil, err
	}
	defer forget()
	d := &download{bed: a.bed, began: time.Now()}
	sampling, sampled := context.WithCancel(ctx)
	var all sync.WaitGroup
	all.Go(func() { d.sample(sampling) })
	var failed error
	all.Go(func() { failed = d.run(sampling, gone) })
	defer func() { sampled(); all.Wait() }()
	if err := crew.Pause(ctx, a.lengths.wifiOff()); err != nil {
		return nil, err
	}
	turn := time.Since(d.began)
	if err := a.interfaceDown(ctx); err != nil {
		return nil, err
	}
	if err := crew.Pause(ctx, a.lengths.handover-turn); err != nil {
		return nil, err
	}
	a.measured()
	end := time.Since(d.began)
	sampled()
	all.Wait()
	if failed != nil {
		return nil, failed
	}
	v = values{}
	resumed(v, d.samples, turn, end)
	return v, nil
}

// serveFile has the server offer a file.
func (b *bed) serveFile(ctx context.Context) (stop func(), err error) {
	l, err := testbed.On(b.Host(serverHost), func() (net.Listener, error) {
		var c net.ListenConfig
		c.SetMultipathTCP(false)
		return c.Listen(ctx, "tcp4", netip.AddrPortFrom(netip.IPv4Unspecified(), flowPort).String())
	})
	if err != nil {
		return nil, err
	}
	server := &http.Server{ReadHeaderTimeout: startLimit, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.ServeContent(w, r, "file.bin", time.Unix(1, 0), io.NewSectionReader(zeros{}, 0, fileSize))
	})}
	var ended sync.WaitGroup
	ended.Go(func() { _ = server.Serve(l) })
	return func() { _ = server.Close(); ended.Wait() }, nil
}

// zeros is a file of zeros.
type zeros struct{}

func (zeros) ReadAt(b []byte, _ int64) (int, error) {
	clear(b)
	return len(b), nil
}

// linkGone returns a channel that is closed when the kernel reports that an interface of the client is down.
func (b *bed) linkGone(name string) (gone <-chan struct{}, forget func(), err error) {
	link, err := b.Host(clientHost).Link(name)
	if err != nil {
		return nil, nil, err
	}
	updates, done, closed := make(chan netlink.LinkUpdate), make(chan struct{}), make(chan struct{})
	if err := b.Host(clientHost).Do(func() error { return netlink.LinkSubscribe(updates, done) }); err != nil {
		return nil, nil, fmt.Errorf("watch the interfaces: %w", err)
	}
	go func() {
		isGone := false
		for u := range updates {
			if u.Attrs().Index == link.Attrs().Index && u.IfInfomsg.Flags&unix.IFF_UP == 0 && !isGone {
				isGone = true
				close(closed)
			}
		}
	}()
	return closed, func() { close(done) }, nil
}

// download is that of the application.
type download struct {
	*bed
	began    time.Time
	received atomic.Int64
	uplink   atomic.Int32 // that it uses, once the answer has come
	samples  []sample
}

// run downloads over the first uplink, and the rest over the second once the first has gone.
func (d *download) run(ctx context.Context, gone <-chan struct{}) error {
	over, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-gone:
			cancel()
		case <-over.Done():
		}
	}()
	err := d.get(over, 1)
	select {
	case <-gone:
		err = d.get(ctx, 2)
	default:
	}
	if ctx.Err() != nil {
		return nil // it was stopped
	}
	return err
}

// get requests the missing parts, over an uplink.
func (d *download) get(ctx context.Context, uplink int) error {
	transport := &http.Transport{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: d.clientAddr(uplink).AsSlice()}}
		dialer.SetMultipathTCP(false)
		return testbed.On(d.Host(clientHost), func() (net.Conn, error) { return dialer.DialContext(ctx, network, address) })
	}}
	defer transport.CloseIdleConnections()
	from := d.received.Load()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+netip.AddrPortFrom(d.serverAddr(1), flowPort).String()+"/file.bin", nil)
	if err != nil {
		return err
	}
	wanted := http.StatusOK
	if from > 0 {
		r.Header.Set("Range", fmt.Sprintf("bytes=%d-", from))
		wanted = http.StatusPartialContent
	}
	answer, err := transport.RoundTrip(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != wanted || from > 0 && answer.Header.Get("Content-Range") != fmt.Sprintf("bytes %d-%d/%d", from, fileSize-1, fileSize) {
		return fmt.Errorf("the server answers %s, %q to a request from byte %d on", answer.Status, answer.Header.Get("Content-Range"), from)
	}
	d.uplink.Store(int32(uplink))
	buffer := make([]byte, 256<<10)
	for {
		n, err := answer.Body.Read(buffer)
		d.received.Add(int64(n))
		if err != nil {
			return err
		}
	}
}

// sample looks at the download at an interval.
func (d *download) sample(ctx context.Context) {
	ticker := time.NewTicker(sampleInterval)
	defer ticker.Stop()
	for {
		s := sample{at: time.Since(d.began), received: d.received.Load()}
		if uplink := int(d.uplink.Load()); uplink > 0 {
			s.subflows = []subflow{{path: d.pathOf(d.clientAddr(uplink), d.serverAddr(1))}}
		}
		d.samples = append(d.samples, s)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
