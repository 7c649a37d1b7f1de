package relay

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// mostListeners bounds the sockets that are handed over at once.
const mostListeners = 64

// takeOver returns the listeners of the relay that runs in dir, by name. There are none if no relay runs.
func takeOver(dir string) (map[string]*os.File, error) {
	c, err := Dial(dir)
	if errors.Is(err, ErrNone) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.conn.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		return nil, err
	}
	line, err := json.Marshal(request{TakeOver: true})
	if err != nil {
		return nil, err
	}
	if _, err := c.conn.Write(append(line, '\n')); err != nil {
		return nil, fmt.Errorf("ask the relay before for its listeners: %w", err)
	}
	text, rights := make([]byte, 64<<10), make([]byte, syscall.CmsgSpace(4*mostListeners))
	n, oob, _, _, err := c.conn.ReadMsgUnix(text, rights)
	if err != nil {
		return nil, fmt.Errorf("take over listeners: %w", err)
	}
	files, err := received(rights[:oob])
	if err != nil {
		return nil, err
	}
	var a answer
	if err := json.Unmarshal(text[:n], &a); err != nil || len(a.Listeners) != len(files) {
		for _, f := range files {
			f.Close()
		}
		return nil, fmt.Errorf("take over %d listeners: got %d: %w", len(a.Listeners), len(files), err)
	}
	named := make(map[string]*os.File)
	for i, name := range a.Listeners {
		named[name] = files[i]
	}
	return named, nil
}

func received(oob []byte) (files []*os.File, err error) {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("take over listeners: %w", err)
	}
	for _, m := range messages {
		fds, err := syscall.ParseUnixRights(&m)
		if err != nil {
			return files, fmt.Errorf("take over listeners: %w", err)
		}
		for _, fd := range fds {
			syscall.CloseOnExec(fd)
			files = append(files, os.NewFile(uintptr(fd), "listener"))
		}
	}
	return files, nil
}
