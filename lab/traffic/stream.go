package traffic

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"time"
)

// sendMessages announces its start and sends each message when it is due, or at once if that has passed.
func sendMessages(ctx context.Context, conn io.Writer, p Plan) error {
	start, err := now()
	if err != nil {
		return err
	}
	if err := binary.Write(conn, binary.BigEndian, int64(start)); err != nil {
		return fmt.Errorf("announce the start: %w", err)
	}
	message := make([]byte, p.Size)
	for i := range p.Count {
		if err := waitUntil(ctx, start+time.Duration(i)*p.Interval); err != nil {
			return err
		}
		if _, err := conn.Write(message); err != nil {
			return fmt.Errorf("send message %d of %d: %w", i+1, p.Count, err)
		}
	}
	return nil
}

// receiveMessages records the time at which each message is complete.
func receiveMessages(conn io.Reader, p Plan) ([]time.Duration, error) {
	r := bufio.NewReaderSize(conn, 64<<10)
	var start int64
	if err := binary.Read(r, binary.BigEndian, &start); err != nil {
		return nil, fmt.Errorf("wait for the start: %w", err)
	}
	done := make([]time.Duration, 0, p.Count)
	for i := range p.Count {
		if err := discard(r, p.Size); err != nil {
			return nil, fmt.Errorf("wait for message %d of %d: %w", i+1, p.Count, err)
		}
		t, err := now()
		if err != nil {
			return nil, err
		}
		done = append(done, t-time.Duration(start))
	}
	return done, nil
}

// discard reads n bytes.
func discard(r io.Reader, n int) error {
	_, err := io.CopyN(io.Discard, r, int64(n))
	return err
}

// waitUntil sleeps until a moment of the clock.
func waitUntil(ctx context.Context, moment time.Duration) error {
	t, err := now()
	if err != nil || t >= moment {
		return err
	}
	timer := time.NewTimer(moment - t)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
